"""The run directory: tables that grow with the run, the shared model, a summary and plots."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedapps.core import log, registry
from fedapps.core.config import to_toml
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.method.figures import Figure
from fedapps.report import columns, directory
from fedapps.report.loggers import Loggers
from fedapps.report.page import LivePage
from fedapps.report.progress import TimeLeft, progress_line
from fedapps.report.rows import ClientEval, Means, RoundRow, class_table, means
from fedapps.report.summary import plain, print_summary, summarize


@dataclass
class Report:
    """Writes one run directory while the run goes on; `create` makes it, `finish` completes it.

    `hold` tells it who holds which classes. All methods raise `RunError` where a file cannot be
    written, but for pictures, page and loggers: if one of these fails, that is an event.
    """

    folder: Path
    settings: Settings
    class_counts: np.ndarray | None = None
    rows: list[RoundRow] = field(default_factory=list)
    last_evaluation: Sequence[ClientEval] = ()
    started: float = field(default_factory=time.monotonic)
    figures: tuple[Figure, ...] = field(default_factory=columns.known_figures)

    def __post_init__(self) -> None:
        self._time_left = TimeLeft(self.settings.num_rounds, self.settings.evaluate_every)
        self._round_columns = columns.round_columns(self.figures)
        self._client_columns = columns.client_columns(self.figures)
        self._loggers = Loggers(self._logger_failed)
        self._page = LivePage(self.folder)

    @classmethod
    def create(
        cls, runs_dir: str, run_name: str, settings: Settings, flat_config: Mapping[str, Scalar]
    ) -> "Report":
        """Make `<runs-dir>/<run-name>/` with config.toml and the empty tables.

        Raises `RunError` if a named run exists, the folder cannot be made, or a logger of the
        run's settings cannot begin.
        """
        path = Path(runs_dir).expanduser().absolute()
        report = cls(directory.make(path, run_name, settings), settings)
        report._write("config.toml", to_toml({**flat_config, "run-name": ""}))
        report._append("rounds.csv", [report._round_columns])
        report._append("clients.csv", [report._client_columns])
        report._append("events.csv", [columns.EVENT])
        report._loggers.begin(settings.logger_names, report.folder, flat_config)
        log.info("run directory: %s", report.folder)
        return report

    def hold(self, class_counts: np.ndarray) -> None:
        """Take the training samples of each class, [clients, classes], and write samples.csv."""
        self.class_counts = class_counts
        held = zip(*np.nonzero(class_counts), strict=True)
        rows = [(int(c), int(k), int(class_counts[c, k])) for c, k in held]
        self._write(directory.SAMPLES, directory.csv_text([columns.SAMPLES, *rows]))

    def round(self, row: RoundRow) -> None:
        """Add a finished round to rounds.csv and print its progress line."""
        values = row.flat()
        line = [values.get(name) for name in self._round_columns]
        self._append("rounds.csv", [line])
        self.rows.append(row)
        self._loggers.round(row.round, values)
        self._time_left.add(row)
        left = self._time_left.after(row.round)
        log.info("%s", progress_line(row, self.settings.num_rounds, left))
        if self._page.is_due():
            self._draw_page(left)

    def evaluation(self, round_: int, results: Sequence[ClientEval]) -> Means:
        """Add an evaluation to clients.csv and return the means for its `RoundRow`."""
        self.last_evaluation = sorted(results, key=lambda result: result.client)
        values = [{"round": round_} | result.flat() for result in self.last_evaluation]
        lines = [[flat.get(name) for name in self._client_columns] for flat in values]
        self._append("clients.csv", lines)
        self._loggers.evaluation(round_, values)
        return means(self.last_evaluation, self.figures)

    def event(self, round_: int, client: int | str, kind: str, detail: str) -> None:
        """Add a line to events.csv; `client` is "server" for what the server did."""
        line = [round_, client, kind, " ".join(str(detail).split())]
        self._append("events.csv", [line])

    def finish(
        self,
        arrays: Mapping[str, np.ndarray],
        extra: Mapping[str, object],
        state: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Write the shared model, class-wise accuracy, summary and plots; print the summary.

        `extra` joins summary.json (NaN: null); `state` is what the method keeps on the server
        beside the model. A plot that fails costs an event, not the run.
        """
        seconds = time.monotonic() - self.started
        summary = summarize(self.settings, self.rows, self.figures, seconds) | plain(extra)
        self._write(directory.MODEL, directory.model_bytes(arrays))
        if state:
            self._write(directory.STATE, directory.model_bytes(state))
        self._write("summary.json", json.dumps(summary, indent=2) + "\n")
        self._write_classes()
        self._plot()
        self._loggers.end(summary)
        self._draw_page()
        print_summary(summary, self.settings, self.figures)
        log.info("%s", self.folder)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Note in events.csv what ends the run inside of this before it has finished."""
        try:
            yield
        except BaseException as error:
            kind = "interrupted" if isinstance(error, KeyboardInterrupt) else "run-failed"
            reason = str(error) if isinstance(error, RunError) else _said(error)
            with suppress(RunError):  # it may be that nothing can be written
                self.event(self._last_round, "server", kind, reason)
                self._loggers.end(None)
                self._draw_page()
            raise

    @property
    def _last_round(self) -> int:
        return self.rows[-1].round if self.rows else 0

    def _logger_failed(self, name: str, error: Exception) -> None:
        log.warning("%s gets no more figures: %s", name, _said(error))
        self.event(self._last_round, "server", "logger-failed", f"{name}: {_said(error)}")

    def _append(self, name: str, rows: directory.Rows) -> None:
        directory.append(self.folder / name, rows)

    def _write(self, name: str, data: bytes | str) -> None:
        write_whole(self.folder / name, data.encode() if isinstance(data, str) else data)

    def _write_classes(self) -> None:
        self._write("classes.csv", directory.csv_text(class_table(self.last_evaluation)))

    def _draw_page(self, left: float | None = None) -> None:
        """Write the page of the run, which takes `left` seconds more; None: it has ended."""
        try:
            self._write_classes()
            self._page.write(registry.strategy_class(self.settings.strategy).plots, left)
        except Exception as error:
            log.info("page not written: %s", _said(error))
            self.event(self._last_round, "server", "page-failed", _said(error))

    def _plot(self) -> None:
        try:
            # matplotlib takes a second that the start need not wait for
            from fedapps.report import plots

            method = registry.strategy_class(self.settings.strategy)
            plots.draw_all(self.folder, self.class_counts, self.figures, method.plots)
        except Exception as error:
            log.info("plots not drawn: %s", _said(error))
            self.event(self._last_round, "server", "plot-failed", _said(error))


def _said(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
