"""Print a comparison: scores, costs, differences and notes in 100 columns."""

from collections.abc import Callable, Iterator

import pandas as pd
from rich import box
from rich.table import Column, Table

from fedapps.compare.comparison import Comparison
from fedapps.compare.groups import MANY, label, shown
from fedapps.compare.pairs import ALL_PAIRS, FEWEST, Pair
from fedapps.core.words import number, spans
from fedapps.report.console import console, readable
from fedapps.report.units import LINE_WIDTH, duration, human, human_bytes
from fedapps.tasks import Metric

COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "bytes_down": ("down", human_bytes),
    "bytes_up": ("up", human_bytes),
    "bytes_eval": ("evaluation", human_bytes),
    "train_macs": ("training MACs", human),
    "cost_paper": ("paper cost", human),
    "seconds": ("time", duration),
    "failures": ("failures", lambda value: f"{value:g}"),
}
NAMED = 4  # up to this many methods or data sets are named; of more, only the number is
FRAME = 24  # width of all columns but settings and scores
CELL = 17  # width of a score, with the space between columns
LEVEL = 0.05  # of all tests together
NARROW = 20  # with a narrower column of settings, each group's settings are a line of their own


def show(comparison: Comparison) -> None:
    """Print a comparison."""
    screen = console()
    sign = readable("±", screen)
    screen.print(headline(comparison), style="bold", soft_wrap=True)
    spread = f", {sign} standard deviation over seeds"
    metric = comparison.metric
    what = metric.plural if metric.more_is_better else f"{metric.plural} (less is better)"
    screen.print(f"{what} on {scored_on(comparison)}{spread if comparison.several else ''}")
    screen.print(scores(comparison, sign))
    if not _settings(comparison):
        for group in comparison.groups:
            screen.print(f"{group.name}: {label(group, comparison.keys)}", soft_wrap=True)
    screen.print("mean costs of a run")
    screen.print(costs(comparison))
    if comparison.pairs:
        screen.print(of_pairs(comparison))
        screen.print(differences(comparison, sign))
    for note in [*cautions(comparison), *comparison.notes]:
        screen.print(note, soft_wrap=True)


def headline(comparison: Comparison) -> str:
    """Say what is compared, for example `fedper, fedbabu on digits, seeds 0-2, 20 rounds`."""
    groups = comparison.groups

    def named(key: str, noun: str) -> str:
        values = [*dict.fromkeys(shown(group, key) for group in groups)]
        return ", ".join(values) if len(values) <= NAMED else f"{len(values)} {noun}"

    seeds = spans({seed for group in groups for seed in group.seeds})
    rounds = {shown(group, "num-rounds") for group in groups}
    words = [
        f"{named('strategy', 'methods')} on {named('dataset', 'data sets')}",
        f"seed {seeds}" if seeds.isdigit() else f"seeds {seeds}",
        *(number(int(only), "round") for only in rounds if len(rounds) == 1),
    ]
    return ", ".join(words)


def scored_on(comparison: Comparison) -> str:
    """Say which samples were scored, for example `test samples`."""
    kinds = {str(group.settings["evaluate-on"]) for group in comparison.groups}
    return " or ".join(sorted(kinds)) + " samples"


def scores(comparison: Comparison, sign: str) -> Table:
    """Return a table of each score's mean and std over seeds, a row per group."""
    figures, metric = comparison.scores, comparison.metric
    settings = _settings(comparison)
    words = [f"{metric.words(name)} {metric.unit or metric.short}" for name in figures]
    heads = [head if len(head) < CELL else "\n".join(head.split(" ", 1)) for head in words]
    table = Table(
        Column(no_wrap=True),
        *(Column(title, overflow="fold") for title in settings),
        Column("seeds", overflow="fold", min_width=len("seeds")),
        *(Column(head, justify="right", no_wrap=True) for head in ("n", *heads)),
        box=box.HORIZONTALS,
    )
    for place, group in enumerate(comparison.groups):
        values = group.figures.reindex(columns=figures)
        table.add_row(
            group.name,
            *(cells[place] for cells in settings.values()),
            spans(group.seeds),
            f"{len(group.runs)}{'' if group.finished else '*'}",
            *(mean_and_std(metric.factor * values[name], sign, metric) for name in figures),
        )
    return table


def costs(comparison: Comparison) -> Table:
    """Return a table of a run's mean costs over seeds, a row per group."""
    table = _of_numbers("rounds", *(title for title, _ in COSTS.values()))
    for group in comparison.groups:
        means = group.costs.mean()
        cells = (say(means[name]) for name, (_, say) in COSTS.items())
        table.add_row(group.name, spans(set(group.rounds)), *cells)
    return table


def of_pairs(comparison: Comparison) -> str:
    """Say what `differences` are of."""
    return f"personalized {comparison.metric.label}, difference seed by seed"


def differences(comparison: Comparison, sign: str) -> Table:
    """Return a table of the differences seed by seed, with their tests."""
    metric = comparison.metric
    unit = "points" if metric.unit else metric.short
    table = _of_numbers("n", unit, "95 % interval", "p of a paired t-test")
    digits = _digits_of_p(comparison)
    for pair in comparison.pairs:
        spread = "" if pair.std is None else f" {sign} {metric.digits(pair.std)}"
        bounds = [metric.digits(value, "+") for value in pair.interval or ()]
        table.add_row(
            f"{pair.second} - {pair.first}",
            str(len(pair.seeds)),
            f"{metric.digits(pair.mean, '+')}{spread}",
            " to ".join(bounds),
            _chance(pair, digits),
        )
    return table


def _of_numbers(*titles: str) -> Table:
    """Return an empty table of numbers, with a first column for what they are of."""
    return Table("", *(Column(title, justify="right") for title in titles), box=box.HORIZONTALS)


def mean_and_std(values: pd.Series, sign: str, metric: Metric) -> str:
    """Write `93.40 ± 0.51`; without the deviation for a single value; "" for no value."""
    known = values.dropna()
    if known.empty:
        return ""
    spread = f" {sign} {metric.digits(known.std(ddof=1))}" if len(known) > 1 else ""
    return f"{metric.digits(known.mean())}{spread}"


def _settings(comparison: Comparison) -> dict[str, list[str]]:
    """Return the columns of settings: one for each differing key if they fit, otherwise one.

    If the scores leave no room even for one, there is none.
    """
    groups = comparison.groups
    width = LINE_WIDTH - FRAME - CELL * len(comparison.scores)
    columns = {key: [shown(group, key) for group in groups] for key in comparison.keys}
    needed = sum(3 + max(map(len, [key, *cells])) for key, cells in columns.items())
    if columns and needed <= width and len(columns) <= MANY:
        return columns
    if width < NARROW:
        return {}
    return {"settings": [label(group, comparison.keys) for group in groups]}


def _chance(pair: Pair, digits: int) -> str:
    if len(pair.seeds) < FEWEST:
        return f"{number(len(pair.seeds), 'seed')}: no finding"
    return "the same difference in all" if pair.p is None else f"{pair.p:.{digits}g}"


def _bound(comparison: Comparison) -> tuple[float, list[float]]:
    """Return what each p is compared with, and all p (Bonferroni)."""
    known = [pair.p for pair in comparison.pairs if pair.p is not None]
    return LEVEL / max(1, len(known)), known


def _digits_of_p(comparison: Comparison) -> int:
    """Return the digits, at least 2, that show which p are below the bound."""
    bound, known = _bound(comparison)
    others = [p for p in known if p != bound]
    return next(n for n in range(2, 18) if f"{bound:.{n}g}" not in [f"{p:.{n}g}" for p in others])


def cautions(comparison: Comparison) -> Iterator[str]:
    """Say how the tables of a comparison are to be read."""
    if len(comparison.keys) > MANY:
        yield "settings that are not named have their default values"
    if len(comparison.groups) > ALL_PAIRS and comparison.pairs:
        first = comparison.groups[0].name
        yield f"groups are compared with {first}, the first; to change this, name another run first"
    bound, known = _bound(comparison)
    if (tests := len(known)) > 1:
        told = f"{bound:.{_digits_of_p(comparison)}g}"
        yield f"{tests} tests: compare each p with {LEVEL} / {tests} = {told}"
