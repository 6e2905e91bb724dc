"""Whether a difference over the seeds is clear, one at a time and among many.

Seeds are paired: the split of the data, the selected clients and the initial model depend on the
seed alone. So differences are taken seed by seed. A difference is clear if Student's 95 % interval
over the seeds does not contain zero. If it is the same with all seeds, there is no test. Among many
differences some are clear by chance; Holm's correction says which of them remain.
"""

from collections.abc import Sequence

from scipy import stats

from experiments.outcomes.cells import Figure

LEVEL = 0.05


def p_value(gap: Figure) -> float | None:
    """Return the p-value of a difference (Student's t, two-sided).

    It is None with one seed, or if all seeds have the same difference.
    """
    if len(gap.values) < 2 or gap.all_equal:
        return None
    return float(stats.ttest_1samp(gap.values, 0.0).pvalue)


def holm(gaps: Sequence[Figure]) -> list[float | None]:
    """Return p-values corrected for the number of those that there are (Holm 1979), else None.

    If all differences with a corrected value of at most `LEVEL` are called clear, the chance that
    any of them is not is at most `LEVEL`.
    """
    plain = [p_value(gap) for gap in gaps]
    known = sorted((value, place) for place, value in enumerate(plain) if value is not None)
    corrected, highest = [*plain], 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min((len(known) - rank) * value, 1.0))
        corrected[place] = highest
    return corrected


def holm_text(value: float | None) -> str:
    """Return a corrected p-value for a table; "" without a test."""
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
