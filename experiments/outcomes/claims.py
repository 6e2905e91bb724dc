"""Test the papers' claims on our runs: is one row of a table better than another?

The verdict is about the difference over paired seeds (`significance.py`); with one seed there is
none. `p (Holm)` is corrected for the number of lines about a table.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.outcomes.cells import Figure, Outcome, best_scale, outcomes, words
from experiments.outcomes.significance import LEVEL, holm, holm_text
from experiments.papers.table import SCALES, Claim, Table, matches
from experiments.run.store import Store

SMOKE = SCALES[0]  # only shows that a table runs
ONE_SEED, UNCLEAR, YES, REVERSE = "one seed", "inconclusive", "yes", "no, the reverse"
DIVERGED = "diverged"  # with all seeds
VERDICTS = (YES, REVERSE, UNCLEAR, ONE_SEED)
HEADS = ("claim", "rows", "verdict", "difference", "p (Holm)", "published", "seeds")
SIZE = "size as published"
COUNTS = ("table", "asked by", *VERDICTS, SIZE, "clear after Holm")  # the columns of `counts`
SIZE_SAID = (
    f"*{YES}* is about the sign of a difference. *{SIZE}* is about its size: of the lines with "
    f"*{YES}* and a published difference, it counts those whose interval contains this difference."
)


@dataclass(frozen=True)
class Judgement:
    """A claim about two rows. `gap` is their difference, in points, over the seeds of both.

    With `diverged` further seeds, the training of either row diverged, so they have no difference.
    `corrected` is its p-value, corrected for the number of the table's judgements.
    """

    says: str
    rows: str
    seeds: tuple[int, ...]
    gap: Figure
    diverged: int = 0
    corrected: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the difference is clear even after the correction."""
        return self.corrected is not None and self.corrected <= LEVEL

    @property
    def verdict(self) -> str:
        """Whether the difference is above zero, below zero, or neither beyond the interval."""
        verdicts = {1: YES, -1: REVERSE, 0: UNCLEAR, None: ONE_SEED}
        return verdicts[self.gap.sign] if self.seeds else DIVERGED

    @property
    def of_published_size(self) -> bool | None:
        """Whether the interval contains the published difference; None without one, or no `YES`."""
        if self.gap.published is None or self.verdict != YES:
            return None
        low, high = self.gap.span
        return low <= self.gap.published <= high

    @property
    def ours(self) -> bool:
        """Whether we ask the question, and no paper claims it."""
        return self.says.startswith("ours")

    def texts(self) -> list[str]:
        """Return the cells of this judgement's line in the table."""
        published = "" if self.gap.published is None else f"{self.gap.published:+.2f}"
        gap, seeds = self.gap.text("+") if self.seeds else "", str(len(self.seeds))
        seeds += f", {self.diverged} diverged" if self.diverged else ""
        corrected = holm_text(self.corrected)
        return [self.says, self.rows, self.verdict, gap, corrected, published, seeds]


def counts(found: Iterable[Judgement]) -> Iterator[list[str]]:
    """Yield a line under `COUNTS`, but for the table, for the paper's claims and for ours."""
    kept = [*found]
    for whose, ours in (("the paper", False), ("us", True)):
        those = [judgement for judgement in kept if judgement.ours == ours]
        count = Counter(judgement.verdict for judgement in those)
        verdicts = [str(count[verdict] or "") for verdict in VERDICTS]
        inside = [each for one in those if (each := one.of_published_size) is not None]
        size = f"{sum(inside)} of {len(inside)}" if inside else ""
        clear = sum(judgement.clear for judgement in those)
        if count:
            yield [whose, *verdicts, size, str(clear or "")]


def count_lines(parts: Sequence[tuple[str, list[Judgement]]]) -> Iterator[list[str]]:
    """Yield the lines under `COUNTS`: those of each named part, then those of all together."""
    whole = [judgement for _, judged in parts for judgement in judged]
    for name, judged in (*parts, ("all", whole)):
        yield from ([name, *line] for line in counts(judged))


def lines(found: Iterable[Judgement]) -> Iterator[list[str]]:
    """Yield the lines under `HEADS`. Only the first of a claim's lines repeats its text."""
    before = None
    for judgement in found:
        says, *rest = judgement.texts()
        yield ["" if says == before else says, *rest]
        before = says


def judged(store: Store, table: Table) -> list[Judgement]:
    """Return a judgement for each claim and column in which both rows have run with the same seed.

    A table is judged at the largest scale at which any of its rows has run, but never at `smoke`.
    """
    found = [*_judged(store, table)]
    corrected = holm([judgement.gap for judgement in found])
    return [replace(one, corrected=value) for one, value in zip(found, corrected, strict=True)]


def _judged(store: Store, table: Table) -> Iterator[Judgement]:
    scale = best_scale(store, table)
    if not table.claims or scale == SMOKE:
        return
    ran = outcomes(store, table, scale)
    found = {(o.cell.row.name, o.cell.column): o for o in ran if o.runs or o.diverged}
    for claim in table.claims:
        for name in claim.than:
            for column in [each for each in table.columns or [""] if matches(each, claim.columns)]:
                pair = found.get((claim.better, column)), found.get((name, column))
                if pair[0] and pair[1] and (judgement := _judge(claim, pair[0], pair[1])):
                    yield judgement


def _judge(claim: Claim, better: Outcome, other: Outcome) -> Judgement | None:
    """Compare two outcomes; return None if no seed has the reading in both, or diverged in one."""
    readings = better.cell.row.reading(claim.reads), other.cell.row.reading(claim.reads)
    ours, theirs = better.by_seed(readings[0]), other.by_seed(readings[1])
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    begun = ({*o.diverged, *(run.seed for run in o.runs)} for o in (better, other))
    lost = {*better.diverged, *other.diverged}.intersection(*begun)
    if not seeds and not lost:
        return None
    column = better.cell.column
    said = [reading.published_in(column) for reading in readings]
    published = None if said[0] is None or said[1] is None else said[0] - said[1]
    published = claim.published.get(other.cell.row.name, published)
    gap = Figure(tuple(ours[seed] - theirs[seed] for seed in seeds), published)
    rows = f"{better.cell.row.name} - {other.cell.row.name}" + (f" @ {column}" if column else "")
    read = [words(reading.reads) for reading in readings]
    if claim.reads or read[0] != read[1]:  # else the table already names it
        rows += f" ({' - '.join(dict.fromkeys(read))})"
    return Judgement(claim.says, rows, seeds, gap, len(lost))
