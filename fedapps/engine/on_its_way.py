"""Updates that are on their way to the server when a round ends, and count in a later one."""

from dataclasses import dataclass

import numpy as np

from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays

# Names in a strategy's state. `TABLE` [n, 5] has a row for each update: client, round, finish,
# num_examples, weight. The arrays of a client's update are under `CHANGES`, client and name.
TABLE, CHANGES = "clock/on-its-way", "clock/change/"


@dataclass(frozen=True)
class Answer:
    """An update: when it arrives, in virtual seconds, and in which round it was asked for."""

    finish: float
    round: int
    update: ClientUpdate


@dataclass(frozen=True)
class OnItsWay:
    """The updates on their way, in a strategy's `state`, so that a checkpoint keeps them.

    Their parameters are changes of what their clients had downloaded; other arrays are values.
    """

    state: Arrays

    @property
    def clients(self) -> set[int]:
        """The clients whose updates are on their way."""
        return {int(client) for client, *_ in self._table().tolist()}

    def keep(self, answer: Answer, round_: int, parameters: Arrays) -> None:
        """Keep an update; one of this round becomes changes of what `parameters` were."""
        update = answer.update
        row = (update.client, answer.round, answer.finish, update.num_examples, update.weight)
        self.state[TABLE] = np.concatenate([self._table(), [row]])
        for key, array in update.arrays.items():
            new = answer.round == round_ and key in parameters
            kept = array - parameters[key] if new else array
            self.state[f"{CHANGES}{update.client}/{key}"] = kept

    def take(self) -> list[Answer]:
        """Take all updates out of the state."""
        state, found = self.state, list[Answer]()
        arrays: dict[str, Arrays] = {}
        for name in [name for name in state if name.startswith(CHANGES)]:
            owner, _, key = name.removeprefix(CHANGES).partition("/")
            arrays.setdefault(owner, {})[key] = state.pop(name)
        for client, round_, finish, samples, weight in self._table().tolist():
            own = arrays.get(f"{int(client)}", {})
            update = ClientUpdate(int(client), own, int(samples), weight=weight)
            found.append(Answer(finish, int(round_), update))
        state.pop(TABLE, None)
        return found

    def _table(self) -> np.ndarray:
        return self.state.get(TABLE, np.zeros((0, 5)))
