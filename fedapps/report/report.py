"""The run directory: tables that grow with the run, the shared model, a summary and plots."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedapps.core import changes, log
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.core.paths import expanded
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.core.stopping import Stopped
from fedapps.data.spec import Pooled
from fedapps.report import directory
from fedapps.report.about import About
from fedapps.report.attempts import attempt, cause, said
from fedapps.report.cells import csv_text
from fedapps.report.columns import EVENT, SAMPLES, columns_of
from fedapps.report.loggers import Loggers
from fedapps.report.page import PAGE, LivePage
from fedapps.report.progress import TimeLeft, progress_line
from fedapps.report.rows import (
    ClientEval,
    Means,
    RoundRow,
    class_sums,
    class_table,
    client_rows,
    means,
)
from fedapps.report.state import ReportState
from fedapps.report.summary import plain, print_summary, summarize
from fedapps.tasks import CLASSIFICATION, Task


@dataclass
class Report:
    """Writes one run directory during the run; `create` makes it, `finish` completes it.

    `hold` gets the training samples of each client and class. All methods raise `RunError` if a
    file cannot be written; but if plots, page or a logger fail, that is only an event.
    """

    folder: Path
    settings: Settings
    model: Mapping[str, np.ndarray] = field(default_factory=dict)  # after the last finished round
    rows: list[RoundRow] = field(default_factory=list)
    classes: list[list[int]] = field(default_factory=list)  # as in `ReportState`
    seconds_before: float = 0.0  # the run's time until it was resumed
    started: float = field(default_factory=time.monotonic)
    task: Task = CLASSIFICATION
    about: About = field(default_factory=About.new)
    pending: tuple[Mapping[str, Scalar], ReportState] | None = None  # a resumption until `begin`

    def __post_init__(self) -> None:
        self._time_left = TimeLeft(self.settings)
        named = (directory.names(self.folder, file) for file in directory.NAMED)
        self.columns = columns_of(self.task, *named, timed=bool(self.settings.devices))
        heads = (self.columns.rounds, self.columns.clients, EVENT)
        self._heads = dict(zip(directory.APPENDED, heads, strict=True))
        self._loggers, self._page = Loggers(self._logger_failed), LivePage(self.folder)
        self._live: Mapping[str, np.ndarray] = {}
        self._events: list[list[object]] = []  # that are not in events.csv yet

    @classmethod
    def create(
        cls,
        settings: Settings,
        flat_config: Mapping[str, Scalar],
        task: Task = CLASSIFICATION,
        names: Sequence[Sequence[str]] = ((),),
        about: About | None = None,
    ) -> "Report":
        """Make `<runs-dir>/<run-name>/` with config.toml and the empty tables.

        `names` are those of clients and classes, if the data have them. Raises `RunError` if a
        named run exists, the folder cannot be made, or a logger cannot begin.
        """
        runs_dir = expanded(settings.runs_dir, "runs-dir")
        folder = directory.make(runs_dir, settings.run_name, changes.name_of(flat_config))
        directory.configure(folder, flat_config)  # first: without it, files are no run
        directory.write_names(folder, *names)
        report = cls(folder, settings, task=task, about=about or About.new(task))
        for name, head in report._heads.items():
            directory.start(report.folder / name, [head])
        report.about.write(report.folder)
        report._loggers.begin(settings.logger_names, report.folder, flat_config)
        log.info("run directory: %s", report.folder)
        return report

    @classmethod
    def reopen(
        cls,
        folder: Path,
        settings: Settings,
        flat_config: Mapping[str, Scalar],
        state: ReportState,
        task: Task,
        pooled: Pooled | None = None,
    ) -> "Report":
        """Read the directory of a resumed run; it changes no file before `begin`.

        Raises `RunError` if its files cannot be read.
        """
        report = cls(folder, settings, task=task)
        for name, head in report._heads.items():
            if directory.columns_of(folder / name) != head:
                raise RunError(
                    f"{folder / name}: has other columns than this version of fedapps writes; "
                    "resume with the version that run.json names"
                )
        table = state.table(folder, state.round < settings.num_rounds)
        try:
            for line in directory.rows_of(table.splitlines()):
                report._remember(RoundRow.read(line, report.columns))
        except ValueError as error:  # msgspec's errors are ValueErrors, too
            raise RunError(f"{folder / directory.ROUNDS}: cannot be read: {error}") from error
        report.classes, report.seconds_before = state.classes, state.seconds
        report.about = About.read(folder).again(state.round, pooled)
        report.pending = (flat_config, state)
        return report

    def begin(self) -> None:
        """Delete the lines after the last checkpoint of a resumed run; a new run stays as it is.

        Raises `RunError` if the files cannot be written, or a logger cannot begin.
        """
        if not self.pending:
            return
        flat_config, state = self.pending
        self._loggers.begin(self.settings.logger_names, self.folder, flat_config, state.round)
        self.pending = None  # from here on it has not finished any more: `closing` completes it
        directory.configure(self.folder, flat_config)
        state.restore(self.folder, state.round < self.settings.num_rounds)
        self.about.write(self.folder)
        self._tell_events()
        if self.settings.on_devices and (self.folder / PAGE).exists():
            self.draw_page(self._time_left.after(self.last_round))

    @property
    def seconds(self) -> float:
        """The seconds that the run has taken so far, without breaks before it was resumed."""
        return self.seconds_before + time.monotonic() - self.started

    def state(self, round_: int) -> ReportState:
        """Return what is needed to resume after this round; flushes the tables to disk."""
        tables = {name: directory.sync(self.folder / name) for name in directory.APPENDED}
        lines = [row.line(self.columns) for row in self.rows if row.round == round_]
        if len(lines) > 1:  # a run that goes on will have one of them (`as_after`)
            tables[directory.ROUNDS] -= len(csv_text(lines))
        return ReportState(round=round_, seconds=self.seconds, tables=tables, classes=self.classes)

    def hold(self, clients: Sequence[int], class_counts: np.ndarray) -> None:
        """Write samples.csv: the numbers of training samples of `clients`, [clients, classes]."""
        held = zip(*np.nonzero(class_counts), strict=True)
        rows = [(clients[i], int(k), int(class_counts[i, k])) for i, k in held]
        self._write(directory.SAMPLES, csv_text([SAMPLES, *rows]))

    def follow(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Watch the server's model, a mapping whose arrays are replaced during the run."""
        self._live, self.model = arrays, dict(arrays)

    def round(self, row: RoundRow) -> None:
        """Add a finished round to rounds.csv and print its progress line."""
        follows = row.round == self.last_round  # a phase after the last round: no round's costs
        directory.append(self.folder / directory.ROUNDS, [row.line(self.columns)])
        self._remember(row)
        self.model = dict(self._live)
        self._loggers.round(row.round, row.means.flat() if follows else row.flat())
        left = self._time_left.after(row.round)
        log.info("%s", progress_line(row, self.settings.num_rounds, left, self.columns.lead))
        if self._page.is_due():
            self.draw_page(left)

    def evaluation(self, round_: int, results: Sequence[ClientEval]) -> Means:
        """Add an evaluation to clients.csv; return the means for the `RoundRow`."""
        results = sorted(results, key=lambda result: result.client)
        lines, heads = client_rows(round_, results, self.columns), self.columns.clients
        directory.append(self.folder / "clients.csv", lines)
        self._loggers.evaluation(round_, [dict(zip(heads, line, strict=True)) for line in lines])
        found = means(results, self.columns)
        if found.personalized is not None or not results:
            self.classes = class_sums(results)
        return found

    def unseen(self, round_: int, results: Sequence[ClientEval]) -> None:
        """Write the scores of newcomers to unseen.csv, which has the columns of clients.csv."""
        rows = [self.columns.clients, *client_rows(round_, results, self.columns)]
        if results:
            self._write(directory.UNSEEN, csv_text(rows))

    def event(self, round_: int, client: int | str, kind: str, detail: str) -> None:
        """Add a line to events.csv; `client` is "server" for an event of the server."""
        self._events.append([round_, client, kind, " ".join(str(detail).split())])
        self._tell_events()

    def finish(
        self,
        arrays: Mapping[str, np.ndarray],
        extra: Mapping[str, object],
        plots: bool = True,
        stopped: str = "",
    ) -> None:
        """Write the shared model, accuracies per class, plots and summary; print the summary.

        `extra` is added to summary.json (NaN becomes null), and so is `stopped`, which says why the
        run stopped early, if it did. Without `plots`, neither plots nor the page are made. Plots
        come last: a process that was told to stop may have no time for them. One that fails is only
        an event. If a file cannot be written, the others are; then the first `RunError` is raised.
        """
        errors = attempt(lambda: self._write(directory.MODEL, directory.model_bytes(arrays)))
        errors += attempt(self._write_classes)
        why = stopped or "".join(str(error) for error in errors[:1])
        unseen = self.folder / directory.UNSEEN
        newcomers = directory.lines(unseen) if unseen.exists() else []
        summary = summarize(self.settings, self.rows, self.columns, self.seconds, newcomers)
        summary |= plain(extra) | {"finished": not why} | ({"stopped": why} if why else {})
        text = json.dumps(summary, indent=2)
        errors += attempt(lambda: self._write(directory.SUMMARY, f"{text}\n"))
        errors += attempt(lambda: self._loggers.end(None if stopped else summary))
        errors += attempt(self.draw_page) if plots else []
        errors += attempt(self._plot) if plots and (self.rows or not stopped) else []
        if not stopped:
            print_summary(summary, self.settings, self.columns, self.classes)
        if errors:
            raise errors[0]

    def _remember(self, row: RoundRow) -> None:
        self.rows.append(row)
        self._time_left.add(row)

    @contextmanager
    def closing(self, plots: bool = True) -> Iterator[None]:
        """Complete the directory after the last finished round if the run in this block ends early.

        The error that ended the run is recorded in events.csv and raised again. Errors of writing
        are then ignored. A resumed run that did not `begin` stays what it was.
        """
        try:
            yield
        except BaseException as error:
            if self.pending:
                raise
            by_hand = isinstance(error, KeyboardInterrupt | Stopped)
            kind, reason = "interrupted" if by_hand else "run-failed", cause(error)
            attempt(lambda: self.event(self.last_round, "server", kind, reason))
            attempt(lambda: self.finish(self.model, {}, plots, reason))
            done, total = self.last_round, self.settings.num_rounds
            if not isinstance(error, KeyboardInterrupt):  # for Ctrl-C, the caller says more
                why = f" ({reason})" if by_hand else ""
                log.info("stopped after round %s of %s%s, see %s", done, total, why, self.folder)
            raise

    @property
    def last_round(self) -> int:
        """The last round that has a row in rounds.csv; 0 if none has."""
        return self.rows[-1].round if self.rows else 0

    def _logger_failed(self, name: str, error: Exception) -> None:
        log.warning("%s gets no more figures: %s", name, said(error))
        self.event(self.last_round, "server", "logger-failed", f"{name}: {said(error)}")

    def _tell_events(self) -> None:
        if not self.pending:
            directory.append(self.folder / "events.csv", self._events)
            self._events.clear()

    def _write(self, name: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else data
        write_whole(self.folder / name, content, durable=name in directory.ON_DISK)

    def _write_classes(self) -> None:
        self._write("classes.csv", csv_text(class_table(self.classes, self.columns)))

    def draw_page(self, left: float | None = None) -> None:
        """Write the page of the run; `left` are the expected seconds left, None at its end."""
        try:
            if not self.pending:
                self._write_classes()
            self._page.write(left)
        except Exception as error:
            log.info("page not written: %s", said(error))
            self.event(self.last_round, "server", "page-failed", said(error))

    def _plot(self) -> None:
        try:
            from fedapps.report import plots  # here, because loading matplotlib takes a second

            plots.draw_all(self.folder)
        except Exception as error:
            log.info("plots not drawn: %s", said(error))
            self.event(self.last_round, "server", "plot-failed", said(error))
            self.draw_page()  # again, as it lists the events
