"""The state of a run directory after a round, and how a resumed run goes back to it."""

import os
from pathlib import Path

import msgspec

from fedapps.core.errors import RunError
from fedapps.core.files import write_whole, writing
from fedapps.report import directory
from fedapps.report.rows import as_after


class ReportState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a run directory after a round, as a checkpoint needs it.

    `seconds` is the run's time up to this round. `tables` has the sizes in bytes of the growing
    tables; rounds.csv may have the last round's rows besides. `classes` has the class counts of the
    last evaluation, summed over clients.
    """

    round: int
    seconds: float
    tables: dict[str, int]
    classes: list[list[int]]

    def table(self, run: Path, goes_on: bool) -> str:
        """Return rounds.csv as it was, or as that of a run that `goes_on`.

        Raises `RunError` if it cannot be read.
        """
        path = run / directory.ROUNDS
        try:
            return as_after(self.round, goes_on, directory.text(path))
        except ValueError as error:
            raise RunError(f"{path}: cannot be read: {error}") from error

    def restore(self, run: Path, goes_on: bool) -> None:
        """Delete the lines after this state from the tables; raises as `table` does.

        If the run `goes_on`, it has no newcomers yet.
        """
        table = self.table(run, goes_on)
        for name in self.tables.keys() - {directory.ROUNDS}:
            with writing(run / name):
                os.truncate(run / name, self.tables[name])
        write_whole(run / directory.ROUNDS, table.encode(), durable=True)
        if goes_on:
            (run / directory.UNSEEN).unlink(missing_ok=True)
