"""How the clients that came after the training did, beside those that trained."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.outcomes.cells import Outcome, named_seeds
from experiments.papers.readings import FEW

HEADS = ("method", "seen", "unseen", "difference")  # of `Newcomers.texts`, before the few-shot ones


@dataclass(frozen=True)
class Newcomers:
    """A row of a table, in percent: means over the seeds with which its newcomers were scored.

    `few` has them by the number of samples of each class that they trained on; in `unseen`, they
    trained on all.
    """

    name: str
    seeds: tuple[int, ...]
    seen: float
    unseen: float
    few: dict[int, float]

    def texts(self, counts: Sequence[int]) -> list[str]:
        """Return the cells under `HEADS` and those with `counts` samples; an empty one has none."""
        gap = f"{self.unseen - self.seen:+.1f}"
        few = [f"{self.few[count]:.1f}" if count in self.few else "" for count in counts]
        return [self.name, f"{self.seen:.1f}", f"{self.unseen:.1f}", gap, *few]


def newcomers(outcomes: Sequence[Outcome]) -> list[Newcomers]:
    """Return the rows that read a score of newcomers, those with the best newcomers first."""
    found = []
    for outcome in outcomes:
        row, few = outcome.cell.row, dict[int, float]()
        unseen, seen = dict[int, float](), outcome.by_seed(row.readings[0])
        for reading in row.readings:
            values = outcome.by_seed(reading)
            if match := FEW.fullmatch(reading.reads):
                few |= {int(match[1]): _mean(values)} if values else {}
            elif reading.reads.endswith("_unseen") and "_difference_" not in reading.reads:
                unseen = {seed: value for seed, value in values.items() if seed in seen}
        if unseen:
            means = _mean({seed: seen[seed] for seed in unseen}), _mean(unseen)
            found.append(Newcomers(outcome.cell.name, (*unseen,), *means, few))
    return sorted(found, key=lambda line: -line.unseen)


def sentence(lines: Sequence[Newcomers]) -> str:
    """Say what the columns are, and of which seeds they are the means."""
    usual = max((line.seeds for line in lines), key=len)
    others = [
        f"{line.name}: {','.join(map(str, line.seeds))}" for line in lines if line.seeds != usual
    ]
    apart = f" ({', '.join(others)})" if others else ""
    as_it_comes = any(line.few for line in lines) and not all(line.few for line in lines)
    rest = " Rows without few-shot figures use the shared model as it comes." if as_it_comes else ""
    return (
        "The same runs, with the clients that came after the training: means over "
        f"{named_seeds(usual)}{apart}. *Seen* are the clients that trained; *few-shot* is how "
        f"newcomers do with so many samples of each class, *unseen* with all of theirs.{rest}"
    )


def _mean(by_seed: dict[int, float]) -> float:
    return float(np.mean([*by_seed.values()]))
