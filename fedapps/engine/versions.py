"""Which version of its state each client should have: one that was lost is told of, once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapps.engine.store import NONE

LOADED, SAVED = "state-loaded", "state-saved"  # figures of a reply: a round or `NONE`; 1 or 0


@dataclass
class StateVersions:
    """The round that wrote the newest state of each client, as far as the server knows."""

    of: dict[int, int] = field(default_factory=dict)

    def lost(self, client: int, found: object) -> str:
        """Return what a client had instead of the state that it should have; empty if it had that.

        `found` is the round of the state that it has loaded, whatever its type: it says so itself.
        """
        expected = self.of.get(client)
        if expected is None or type(found) is not int or found >= expected:
            return ""
        there = "none" if found == NONE else f"that of round {found}"
        return f"the state of round {expected} was expected, {there} was found"

    def see(self, round_: int, client: int, figures: Mapping[str, Any]) -> str:
        """Take down what a client says of its state in a round; return what it has `lost`."""
        found: Any = figures.get(LOADED)
        if lost := self.lost(client, found):
            self.of[client] = found
        if figures.get(SAVED) == 1:
            self.of[client] = round_
        return lost
