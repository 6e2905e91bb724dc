"""Send the rows of the tables to common loggers: TensorBoard, MLflow, Weights & Biases.

For example, `rounds/accuracy_personalized` is the column accuracy_personalized of rounds.csv, and
the step is the round. Figures per client go to loggers that have distributions, for example as
`clients/accuracy_personalized`. A package is imported only if the logger is asked for. If it is
missing or cannot begin, the run ends at its start; if it fails later, that is an event.
"""

import importlib.util
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fedapps.core.errors import RunError, named
from fedapps.core.schema import Scalar

PROJECT = "fedapps"  # the project or experiment that the runs belong to
FILES = ("config.toml", "summary.json", "rounds.csv", "clients.csv", "classes.csv", "events.csv")
Metrics = Mapping[str, float]
Failed = Callable[[str, Exception], None]


class Logger(Protocol):
    """One logger of one run."""

    def metrics(self, step: int, values: Metrics) -> None:
        """Log the metrics of a round."""

    def distributions(self, step: int, values: Mapping[str, Sequence[float]]) -> None:
        """Log metrics of a round with a value for each client."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End with the run's summary, or None if the run failed."""


class TensorBoard:
    """Writes `tensorboard/` in the run directory; `tensorboard --logdir RUNS_DIR` shows all."""

    def __init__(self, folder: Path, config: Mapping[str, Scalar], done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(folder / "tensorboard", purge_step=done + 1)
        lines = (f"    {key} = {value}" for key, value in config.items())
        self.writer.add_text("config", "\n".join(lines))

    def metrics(self, step: int, values: Metrics) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def distributions(self, step: int, values: Mapping[str, Sequence[float]]) -> None:
        import numpy as np

        for name, each in values.items():
            self.writer.add_histogram(name, np.array(each), step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        self.writer.close()


def _place_of_files(store: str, run: Path) -> str | None:
    """Return the URI of the folder for the files of runs in a store; None if it knows its own.

    A database does not: MLflow would take the working directory, which for a run on Ray is that of
    the SuperLink.
    """
    kind, _, path = store.partition("?")[0].partition("://")
    if not store:
        return (run / "mlflow").as_uri()
    if kind.startswith("sqlite"):
        return (Path(path[1:]).absolute().parent / "mlruns").as_uri()
    if kind.startswith(("postgresql", "mysql", "mssql")):
        return (run.parent / "mlruns").as_uri()
    return None


class MLflow:
    """Writes to the store of MLFLOW_TRACKING_URI, or else to `mlflow.db` in the run directory."""

    def __init__(self, folder: Path, config: Mapping[str, Scalar], _: int) -> None:
        from mlflow import MlflowClient, entities

        self.folder, self.metric = folder, entities.Metric
        self.elsewhere = bool(store := os.environ.get("MLFLOW_TRACKING_URI", ""))
        own = f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(None if self.elsewhere else own)
        place = _place_of_files(store, folder)
        found, make = self.client.get_experiment_by_name(PROJECT), self.client.create_experiment
        try:
            experiment = found.experiment_id if found else make(PROJECT, place)
        except Exception:  # another run, which began at the same time, may just have made it
            if not (found := self.client.get_experiment_by_name(PROJECT)):
                raise
            experiment = found.experiment_id
        self.run = self.client.create_run(experiment, run_name=folder.name).info.run_id
        parameters = [entities.Param(key, str(value)) for key, value in config.items()]
        for first in range(0, len(parameters), 100):  # MLflow refuses more at once
            self.client.log_batch(self.run, params=parameters[first : first + 100])

    def metrics(self, step: int, values: Metrics) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(name, value, now, step) for name, value in values.items()]
        self.client.log_batch(self.run, metrics=metrics)

    def distributions(self, step: int, values: Mapping[str, Sequence[float]]) -> None:
        """Do nothing, as MLflow has no distributions."""

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if self.elsewhere:
            for name in FILES:
                if (self.folder / name).exists():
                    self.client.log_artifact(self.run, str(self.folder / name))
        self.client.set_terminated(self.run, "FAILED" if summary is None else "FINISHED")


class WeightsAndBiases:
    """Sends to wandb.ai, or writes `wandb/` in the run directory if WANDB_MODE=offline."""

    def __init__(self, folder: Path, config: Mapping[str, Scalar], _: int) -> None:
        import wandb

        self.histogram = wandb.Histogram
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            settings=wandb.Settings(console="off"),  # do not capture printed output
        )

    def metrics(self, step: int, values: Metrics) -> None:
        self.run.log(dict(values), step=step)

    def distributions(self, step: int, values: Mapping[str, Sequence[float]]) -> None:
        shown = {name: self.histogram(each) for name, each in values.items()}
        self.run.log(shown, step=step)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self.run.summary.update(dict(summary))
        self.run.finish(exit_code=int(summary is None))


LOGGERS: dict[str, Callable[[Path, Mapping[str, Scalar], int], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class Loggers:
    """The loggers of a run; one that fails is reported, and left out from then on."""

    def __init__(self, failed: Failed) -> None:
        self.active: dict[str, Logger] = {}
        self._failed = failed

    def begin(
        self, names: Sequence[str], folder: Path, config: Mapping[str, Scalar], done: int = 0
    ) -> None:
        """Begin to log a run after the rounds that are done; raises `RunError` if one cannot."""
        for name in names:
            try:
                self.active[name] = LOGGERS[name](folder, config, done)
            except Exception as error:
                self.end(None)
                raise RunError(f"loggers: {name} cannot begin ({named(error)})") from error

    def round(self, round_: int, row: Mapping[str, Any]) -> None:
        """Log a row of rounds.csv."""
        values = {f"rounds/{name}": value for name, value in row.items() if _is_number(value)}
        self._each(lambda logger: logger.metrics(round_, values))

    def evaluation(self, round_: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log the rows of clients.csv of one evaluation."""
        known: dict[str, list[float]] = {}
        for row in rows:
            for name, value in row.items():
                if name not in ("round", "client") and _is_number(value):
                    known.setdefault(f"clients/{name}", []).append(value)
        if known:
            self._each(lambda logger: logger.distributions(round_, known))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """End all loggers; `summary` is None if the run failed."""
        self._each(lambda logger: logger.close(summary))
        self.active = {}

    def _each(self, do: Callable[[Logger], None]) -> None:
        for name, logger in [*self.active.items()]:
            try:
                do(logger)
            except Exception as error:  # the logger is lost, not the run
                del self.active[name]
                with suppress(Exception):
                    logger.close(None)
                self._failed(name, error)


def check_installed(names: Sequence[str]) -> None:
    """Raise `RunError` for a logger whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise RunError(
                f'loggers = "{",".join(names)}": {name} is not installed; pip install {name}'
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
