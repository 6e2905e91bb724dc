"""What Python programs and notebooks use: `fedapps.run`, `load` and `compare`.

`fedapps/__init__.py` imports this module when one of its names is first used, and each function
imports what takes long when it is called.
"""

import operator
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedapps import serial
from fedapps.core import config, keywords, log, options
from fedapps.core.errors import RunError, refused
from fedapps.core.paths import expanded
from fedapps.core.schema import Scalar
from fedapps.report import cells, directory

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
    from numpy.typing import ArrayLike

    from fedapps.compare.in_python import Comparison
    from fedapps.device.personalized import Personalized
    from fedapps.engine.finished import FinishedRun

    Place = str | os.PathLike[str]
    Samples = ArrayLike | torch.Tensor | pd.DataFrame | str | Path
    Predicted = tuple[np.ndarray, np.ndarray | None]

P = ParamSpec("P")
T = TypeVar("T")


def _plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function raise its `RunError` without the frames and causes that led to it.

    What the system refuses, such as a folder that one may not enter, is a `RunError`, too.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RunError as error:
            problem = RunError(str(error).replace("--client ", "client "))
        except OSError as error:
            if not (line := refused(error)):
                raise
            problem = RunError(line)
        raise problem

    return call


class Run:
    """A run directory, finished or not; `fedapps.run` and `fedapps.load` return it.

    A file is read when it is first asked for, and kept: `load` the run again to see what has been
    added. Everything raises `RunError` if a file is missing or cannot be read.

        run = fedapps.load("~/fedapps-runs/mine")
        run.rounds.plot("round", ["accuracy_initial", "accuracy_personalized"])
    """

    @_plainly
    def __init__(self, path: "Place", trust: str | Path = "") -> None:
        self._trust = str(trust)
        if not isinstance(path, str | os.PathLike):
            raise RunError(f"load: a {type(path).__name__} is no path; give a run directory")
        self.path: Path = expanded(os.fspath(path)).absolute()
        self.config: dict[str, Scalar] = config.stored(self.path)
        """The keys as in config.toml, which `fedapps.run(run.config)` repeats."""
        self._kept: tuple[int | None, Personalized] | None = None  # that predicted last

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """rounds.csv: a row for each round."""
        return self._table("rounds.csv")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """clients.csv: a row for each client in each evaluation; a `name` is a text."""
        return self._table("clients.csv")

    @cached_property
    def unseen(self) -> "pd.DataFrame":
        """unseen.csv: as `clients`, a row for each newcomer (`unseen-clients`) after the run."""
        why = "unseen-clients is not set, or the last round has not been run"
        return self._table(directory.UNSEEN, without=why)

    @cached_property
    def classes(self) -> "pd.DataFrame":
        """classes.csv: a row for each class in the last evaluation; a `name` is a text."""
        return self._table("classes.csv")

    @cached_property
    @_plainly
    def class_names(self) -> tuple[str, ...]:
        """What the data call classes (or labels) 0, 1, ...; empty if they name none."""
        return directory.names(self.path, directory.CLASS_NAMES)

    @cached_property
    def events(self) -> "pd.DataFrame":
        """events.csv: a row for each event; `client` and `detail` are texts."""
        return self._table("events.csv", dtype={"client": str, "detail": str})

    @cached_property
    @_plainly
    def summary(self) -> dict[str, Any]:
        """summary.json, whose `seconds` are of the whole run; empty before the end of the run."""
        return directory.summary(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run has finished; of a best round, the run that it is of."""
        return directory.is_final(self.summary or Run(directory.whole(self.path)).summary)

    @_plainly
    def model(self, client: int | str | None) -> "Personalized":
        """Return a client's personalized model (None: the shared one), a torch module on the CPU.

        A client is a number, or a name in names.csv. The model maps inputs, such as float32 images
        [n, C, H, W] with pixels in 0..1, to outputs, such as logits. The client is personalized
        again, as in its last evaluation.
        """
        import torch

        from fedapps.device import run_models
        from fedapps.training.undisturbed import undisturbed

        number = None if client is None else self._number(client)
        with undisturbed():
            torch.set_num_threads(self._opened.space.settings.threads)
            found = run_models.of_run(self._opened, number)
            if warning := run_models.untrained(found, self._opened):
                log.warning("%s: %s", self.path, warning)
            return found

    def predict(self, client: int | str | None, x: "Samples") -> "np.ndarray":
        """Predict raw samples x [n, ...] with a client's model (None: the shared one).

        Images are [n, H, W] or [n, H, W, C], uint8 or floats in 0..1; other samples are as in the
        run's data: rows of a table are a data frame with its columns. A path is a file as `fedapps
        predict --input` takes. The result is as the targets: int64 [n] for classes (`class_names`).
        """
        return self._predicted(client, x)[0]

    def predict_proba(self, client: int | str | None, x: "Samples") -> "np.ndarray":
        """Return probabilities float32 [n, classes] (or labels) of samples; see `predict`."""
        found = self._predicted(client, x)[1]
        if found is None:
            raise RunError(f"{self.path}: the model of this run gives no probabilities")
        return found

    @_plainly
    def samples(self, client: int | str, subset: str = "test") -> "tuple[np.ndarray, np.ndarray]":
        """Return a client's own samples x [n, ...] and their targets: for metrics of one's own.

        `subset` is train, test or validation. Texts of a table are numbers already.

            x, y = run.samples(0)
            sklearn.metrics.roc_auc_score(y, run.predict_proba(0, x)[:, 1])
        """
        return self._opened.samples(self._number(client), subset)

    @_plainly
    def report(self) -> Path:
        """Write report.html again; return its path."""
        from fedapps.report import page

        return page.again(self.path)

    def __fspath__(self) -> str:
        """Return the run directory: a run can be given wherever a path is taken."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"fedapps.load({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from fedapps.engine import checkpoint
        from fedapps.report import notebook

        return notebook.shown(self.path, lambda: checkpoint.rounds(self.path))

    @_plainly
    def _table(self, name: str, **how: Any) -> "pd.DataFrame":
        from fedapps.report import frames

        if (whole := directory.whole(self.path)) == self.path:
            return frames.read(self.path / name, converters={"name": cells.original}, **how)
        if name not in directory.APPENDED:
            raise RunError(f"{self.path}: has no {name}: a best round has none; load its run")
        last, found = self._opened.round, Run(whole)._table(name, **how)
        return found[found["round"] <= last].reset_index(drop=True)

    def _number(self, client: int | str) -> int:
        """Return the number of a client that is given by it, or by its name in names.csv."""
        if isinstance(client, str):
            return directory.client_of(self.path, client)
        try:
            return operator.index(client)
        except TypeError as error:
            raise RunError(f"client {client!r}: must be a number or a name in names.csv") from error

    @cached_property
    def _opened(self) -> "FinishedRun":
        from fedapps.engine.finished import FinishedRun
        from fedapps.training.undisturbed import undisturbed

        with undisturbed():
            return FinishedRun.open(self.path, trust=self._trust)

    @_plainly
    def _predicted(self, client: int | str | None, x: Any) -> "Predicted":
        from fedapps.device import given, personalized
        from fedapps.training.undisturbed import undisturbed

        number = None if client is None else self._number(client)
        if (kept := self._kept) is None or kept[0] != number:  # other threads can replace it
            kept = self._kept = number, self.model(number)
        model = kept[1]
        with tempfile.TemporaryDirectory() as folder, undisturbed():
            if isinstance(x, str | Path):
                return personalized.predict(model, expanded(str(x)))
            file = given.save(x, Path(folder), model.about)  # so that a file's checks are made
            try:
                return personalized.predict(model, file, copy=True)
            except RunError as error:
                raise RunError(str(error).replace(str(file), "x")) from error


@_plainly
def run(
    *configs: str | Path | Mapping[str, Any],
    progress: bool = True,
    keep_going: bool = False,
    plots: bool = True,
    **keys: Any,
) -> Run:
    """Train in this process, as `fedapps serial` does, and return the finished run.

        run = fedapps.run(strategy="fedprox", num_rounds=3, fedprox={"prox_mu": 1.0})
        run = fedapps.run("config.toml", seed=1, data_root=Path("data"))

    `configs` are what `-c` takes, or mappings; `keys` are single keys with `_` for `-`; later ones
    win. With `progress`, lines are printed (in a notebook the newest one); log.txt has all. `plots`
    draws plots and page. Calls in threads take turns. Ctrl-C ends it after writing what it has.

    Raises `RunError` of one line for settings or files that do not work, and, unless `keep_going`,
    `ClientError` with a client's own error as its cause.
    """
    from fedapps.report.notebook import telling
    from fedapps.training.undisturbed import undisturbed

    flat: dict[str, Scalar] = {}
    for given in (*configs, keys):
        if isinstance(given, Run):
            raise RunError("run: a run is no config; give run.config to repeat it, or resume=run")
        if isinstance(given, Mapping):
            flat |= keywords.read(given)
        else:
            flat |= options.parse_option(str(given), "config")
    keywords.refuse_arguments(flat)
    trust = str(keywords.read(keys).get("model", ""))  # in a config it can be somebody else's
    wanted = serial.absolute(config.applied(flat, trust))
    with undisturbed(), telling(progress):
        folder = serial.run_serial(wanted, keep_going=keep_going, plots=plots)
    return Run(folder, str(wanted["model"]))


def load(path: "Place", trust: str | Path = "") -> Run:
    """Open a run directory, finished or not; raises `RunError` if it is none.

    `trust` is the file of its model, if that lies beside the run: its code then runs.
    """
    return Run(path, expanded(str(trust)).absolute() if trust else "")


@_plainly
def compare(*runs: "Place | Iterable[Place]", metric: str = "auto") -> "Comparison":
    """Compare `Run`s, run directories, folders of them, or tables of evaluations, or a list of any.

        print(fedapps.compare(run, "~/fedapps-runs/sweep").to_latex())

    `metric` names one of their task; `auto` is the one that leads in them. Raises `RunError` if
    there are fewer than two runs, or none has scored a round.
    """
    from fedapps.compare import comparison, in_python

    return in_python.Comparison(comparison.compare(in_python.paths_of(*runs), metric))
