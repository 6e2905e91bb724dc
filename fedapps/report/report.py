"""The run directory: tables that grow with the run, the shared model, a summary and plots."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
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
from fedapps.report.about import About
from fedapps.report.progress import TimeLeft, progress_line
from fedapps.report.rows import ClientEval, Means, RoundRow, class_table, means
from fedapps.report.summary import plain, print_summary, summarize


@dataclass
class Report:
    """Writes one run directory while the run goes on; `create` makes it, `finish` completes it.

    Set `class_counts` (training samples, [clients, classes]) to get the picture of who holds
    which classes. All methods raise `RunError` where a file cannot be written.
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

    @classmethod
    def create(
        cls, runs_dir: str, run_name: str, settings: Settings, flat_config: Mapping[str, Scalar]
    ) -> "Report":
        """Make `<runs-dir>/<run-name>/` with config.toml and the empty tables.

        Raises `RunError` if a named run exists or the folder cannot be made.
        """
        path = Path(runs_dir).expanduser().absolute()
        report = cls(directory.make(path, run_name, settings), settings)
        report._write("config.toml", to_toml({**flat_config, "run-name": ""}))
        directory.start(report.folder / "rounds.csv", [report._round_columns])
        directory.start(report.folder / "clients.csv", [report._client_columns])
        directory.start(report.folder / "events.csv", [columns.EVENT])
        About.new().write(report.folder)
        log.info("run directory: %s", report.folder)
        return report

    def round(self, row: RoundRow) -> None:
        """Add a finished round to rounds.csv and print its progress line."""
        values = row.flat()
        line = [values.get(name) for name in self._round_columns]
        self._append("rounds.csv", [line])
        self.rows.append(row)
        self._time_left.add(row)
        left = self._time_left.after(row.round)
        log.info("%s", progress_line(row, self.settings.num_rounds, left))

    def evaluation(self, round_: int, results: Sequence[ClientEval]) -> Means:
        """Add an evaluation to clients.csv and return the means for its `RoundRow`."""
        self.last_evaluation = sorted(results, key=lambda result: result.client)
        values = ({"round": round_} | result.flat() for result in self.last_evaluation)
        lines = [[flat.get(name) for name in self._client_columns] for flat in values]
        self._append("clients.csv", lines)
        return means(self.last_evaluation, self.figures)

    def event(self, round_: int, client: int | str, kind: str, detail: str) -> None:
        """Add a line to events.csv; `client` is "server" for what the server did."""
        line = [round_, client, kind, " ".join(str(detail).split())]
        self._append("events.csv", [line])

    def finish(
        self, arrays: Mapping[str, np.ndarray], extra: Mapping[str, object], stopped: str = ""
    ) -> None:
        """Write the shared model, class-wise accuracy, summary and plots; print the summary.

        `extra` joins summary.json (NaN: null), and so does why the run stopped early, if it did.
        What cannot be written keeps nothing else from it; afterwards `RunError` tells the first
        cause. A plot that fails costs an event, not the run.
        """
        seconds = time.monotonic() - self.started
        summary = summarize(self.settings, self.rows, self.figures, seconds) | plain(extra)
        summary |= {"finished": not stopped} | ({"stopped": stopped} if stopped else {})
        classes = directory.csv_text(class_table(self.last_evaluation))
        errors = [
            *self._attempt(self._write, "model.safetensors", directory.model_bytes(arrays)),
            *self._attempt(self._write, "classes.csv", classes),
            *self._attempt(self._write, "summary.json", json.dumps(summary, indent=2) + "\n"),
            *self._attempt(self._plot),
        ]
        if stopped:
            done, total = len({row.round for row in self.rows}), self.settings.num_rounds
            log.info("stopped after %s of %s rounds, which are in %s", done, total, self.folder)
        else:
            print_summary(summary, self.settings, self.figures)
            log.info("%s", self.folder)
        if errors:
            raise errors[0]

    def _attempt(self, write: Callable[..., None], *arguments: object) -> list[RunError]:
        """Write something; return the error, if that fails."""
        try:
            write(*arguments)
        except RunError as error:
            return [error]
        return []

    def _append(self, name: str, rows: directory.Rows) -> None:
        directory.append(self.folder / name, rows)

    def _write(self, name: str, data: bytes | str) -> None:
        write_whole(self.folder / name, data.encode() if isinstance(data, str) else data)

    def _plot(self) -> None:
        try:
            # matplotlib takes a second that the start need not wait for
            from fedapps.report import plots

            method = registry.strategy_class(self.settings.strategy)
            plots.draw_all(self.folder, self.class_counts, self.figures, method.plots)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            log.info("plots not drawn: %s", reason)
            self.event(self.rows[-1].round if self.rows else 0, "server", "plot-failed", reason)
