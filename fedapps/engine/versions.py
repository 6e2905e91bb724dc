"""Keep track of the state that each client should have, and report a lost state once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapps.engine.store import NONE

# Metrics of a reply: the round of the loaded state (or `NONE`); 1 if a state was saved, else 0; 1
# if the client's data are others than when the run began, 2 if its test samples, too.
LOADED, SAVED, OTHER_DATA = "state-loaded", "state-saved", "other-data"


@dataclass
class StateVersions:
    """The newest state of each client, as far as the server knows: the round that wrote it."""

    of: dict[int, int] = field(default_factory=dict)

    def lost(self, client: int, found: object) -> str:
        """Describe which state a client should have had and which it had; empty if it had it.

        `found` is the round of the state that the client says it has loaded; it can be of any type,
        as it comes from the client.
        """
        expected = self.of.get(client)
        if expected is None or type(found) is not int or found >= expected:
            return ""
        there = "none" if found == NONE else f"that of round {found}"
        return f"the state of round {expected} was expected, but {there} was found"

    def see(self, round_: int, client: int, metrics: Mapping[str, Any]) -> str:
        """Record what a client says about its state in a round; return what it has `lost`."""
        found: Any = metrics.get(LOADED)
        if lost := self.lost(client, found):
            self.of[client] = found
        if metrics.get(SAVED) == 1:
            self.of[client] = round_
        return lost
