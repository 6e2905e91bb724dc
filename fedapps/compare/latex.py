"""A comparison as a table for a paper: LaTeX with the rules of booktabs, and the same as texts."""

import pandas as pd

from fedapps.compare.comparison import Comparison
from fedapps.compare.groups import label
from fedapps.compare.table import headline, mean_and_std, scored_on

SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
})  # fmt: skip
MISSING = pd.Series(dtype=float)  # a figure that a group does not have


def texts(comparison: Comparison, sign: str = "±") -> pd.DataFrame:
    """Return the table as texts: a row for each group, and mean and std over seeds of each score.

    The first column names the group's method and the other settings in which it differs.
    """
    metric, groups = comparison.metric, comparison.groups
    table = pd.DataFrame({"method": [label(group, comparison.keys) for group in groups]})
    for name in comparison.scores:
        values = [metric.factor * group.figures.get(name, MISSING) for group in groups]
        head = f"{metric.words(name)} ({metric.unit or metric.short})"
        table[head] = [mean_and_std(value, sign, metric) for value in values]
    return table


def latex(comparison: Comparison) -> str:
    r"""Return the table of `texts` in LaTeX, for `\usepackage{booktabs}`; the best means are bold.

    Comments say what is compared, and what limits the comparison.
    """
    table, metric, groups = texts(comparison), comparison.metric, comparison.groups
    lines = [[escaped(str(text)) for text in row] for row in (table.columns, *table.to_numpy())]
    for column, name in enumerate(comparison.scores, 1):
        means = [group.figures.get(name, MISSING).mean() for group in groups]
        best = metric.best([mean for mean in means if mean == mean])  # NaN is not equal to itself
        for line, mean in zip(lines[1:], means, strict=True):
            text = line[column].replace("-", "$-$").replace("±", r"$\pm$")
            as_good = len(means) > 1 and shown(mean, comparison) == shown(best, comparison)
            line[column] = rf"\textbf{{{text}}}" if as_good else text
    head, *body = (" & ".join(line) + r" \\" for line in lines)
    spread = ", +- standard deviation over seeds" if comparison.several else ""
    what = f"{metric.plural} on {scored_on(comparison)}{spread}"
    named = [f"{group.name}: {label(group, comparison.keys)}" for group in groups]
    notes = [*named, *comparison.notes] if comparison.notes else []  # they name rows by letters
    comments = [f"% {' '.join(text.split())}" for text in (headline(comparison), what, *notes)]
    begin = rf"\begin{{tabular}}{{l{'r' * len(comparison.scores)}}}"
    rules = [r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*comments, begin, *rules]) + "\n"


def shown(mean: float, comparison: Comparison) -> str:
    """Write a mean in the digits of the table, in which equal means are equally good."""
    return comparison.metric.digits(comparison.metric.factor * mean)


def escaped(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return text.translate(SPECIAL)
