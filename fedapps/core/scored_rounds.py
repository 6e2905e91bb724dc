"""Which rounds of a run are evaluated, and how; only this module says it."""

from fedapps.core.settings import Settings

UNSCORED, INITIAL, PERSONALIZED = range(3)  # not at all; without personalization; with it


def is_due(settings: Settings, round_: int) -> bool:
    """Tell whether a round has an evaluation with personalization."""
    every = settings.evaluate_every
    return round_ == settings.num_rounds or (every > 0 and round_ % every == 0)


def kinds(settings: Settings) -> bytes:
    """Return how each round is evaluated: byte t - 1 is what round t is."""
    found = bytearray(settings.num_rounds)
    for round_ in settings.further_rounds:
        found[round_ - 1] = INITIAL
    for round_ in range(1, settings.num_rounds + 1):
        if is_due(settings, round_):
            found[round_ - 1] = PERSONALIZED
    return bytes(found)
