"""A comparison as an object for programs and notebooks: `fedapps.compare` returns it."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from markupsafe import escape

from fedapps.compare import comparison, files, table
from fedapps.compare.groups import label
from fedapps.compare.latex import latex, texts
from fedapps.core.errors import RunError
from fedapps.core.paths import expanded
from fedapps.core.words import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paths_of(*given: Any) -> list[Path]:
    """Return the paths of runs, of paths, or of a single list of them.

    Raises `RunError` for what is neither.
    """
    one: Any = given[0] if len(given) == 1 else given
    several = isinstance(one, Iterable) and not isinstance(one, str | os.PathLike)
    found = [*one] if several else [one]
    for kind in (type(path).__name__ for path in found if not isinstance(path, str | os.PathLike)):
        raise RunError(f"compare: type {kind} is no run; give runs or paths, such as [run, other]")
    return [expanded(os.fsdecode(path)) for path in found]


class Comparison:
    """Runs side by side; runs that differ only in their seed are one group, a row of each table.

    both = fedapps.compare([fedavg, fedper])
    both.table["accuracy_personalized_mean"]
    print(both.to_latex())
    """

    def __init__(self, compared: comparison.Comparison) -> None:
        self._compared = compared
        self.notes: list[str] = compared.notes
        """What limits the comparison, one sentence each."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each group: settings that differ, n, mean and std (ddof=1) of each figure."""
        return pd.DataFrame(files.groups_table(self._compared)).set_index("group")

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run with its figures and costs, as in runs.csv of `fedapps compare`."""
        return pd.DataFrame(files.runs_table(self._compared))

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row for each pair of groups: the personalized score of `second` minus that of `first`.

        Both have common seeds, the same samples and as many rounds; of more than four groups, all
        are compared with the first only, as each pair more is a test more.
        Mean and std (ddof=1) over n common seeds, the 95 % interval from `low` to `high`, and the p
        of a paired t-test; in percentage points, or in the unit of the metric; NaN: not known.
        """
        nothing = None, None
        found = [
            (of.first, of.second, len(of.seeds), of.mean, of.std, *(of.interval or nothing), of.p)
            for of in self._compared.pairs
        ]
        numbers = ["mean", "std", "low", "high", "p"]
        rows = pd.DataFrame(found, columns=["first", "second", "n", *numbers])
        return rows.astype(dict.fromkeys(numbers, float))

    def to_latex(self) -> str:
        """Return a LaTeX table for the package booktabs: mean ± std, the best in bold."""
        return latex(self._compared)

    def plot(self) -> "Figure":
        """Return the curves over rounds as a matplotlib figure, which notebooks show."""
        from fedapps.compare import curves  # matplotlib takes a second
        from fedapps.drawing.pictures import styled

        with styled():
            return curves.draw(self._compared)

    def __repr__(self) -> str:
        groups, keys = self._compared.groups, self._compared.keys
        told = (f"{label(group, keys)} ({number(len(group.runs), 'run')})" for group in groups)
        return f"<comparison of {', '.join(told)}>"

    def __str__(self) -> str:
        return texts(self._compared).to_string(index=False)

    def _repr_html_(self) -> str:
        compared = self._compared
        html = texts(compared).set_axis([group.name for group in compared.groups]).to_html()
        if compared.pairs:
            columns = table.differences(compared, "±").columns
            cells = pd.DataFrame({str(column.header): [*column.cells] for column in columns})
            html += f"{escape(table.of_pairs(compared))}{cells.to_html(index=False)}"
        return html + "".join(f"<br>{escape(n)}" for n in [*table.cautions(compared), *self.notes])
