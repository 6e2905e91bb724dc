"""Updates on their way: kept and taken out in one pass over the state."""

import numpy as np

from fedapps.engine.on_its_way import Answer, OnItsWay
from fedapps.method.update import ClientUpdate


class Watched(dict):
    """A state that counts the names that are looked at."""

    looked = 0

    def __iter__(self):
        for name in super().__iter__():
            Watched.looked += 1
            yield name


def test_all_updates_are_taken_in_one_pass_over_the_names_of_the_state():
    state = Watched({"clock/now": np.zeros(1)})
    flying, names = OnItsWay(state), [f"layer/{number}" for number in range(5)]
    for client in (11, 1, 111):  # a number can begin another one
        arrays = {name: np.full(2, client + place) for place, name in enumerate(names)}
        answer = Answer(client / 2, 3, ClientUpdate(client, arrays, client + 5, weight=0.5))
        flying.keep(answer, 3, {"layer/4": np.ones(2)})
    assert len(state) == 1 + 1 + 3 * 5
    Watched.looked = 0
    found = flying.take()
    assert Watched.looked <= 1 + 1 + 3 * 5
    assert [*state] == ["clock/now"]
    for answer, client in zip(found, (11, 1, 111), strict=True):
        update = answer.update
        assert (answer.finish, answer.round, update.client) == (client / 2, 3, client)
        assert (update.num_examples, update.weight) == (client + 5, 0.5)
        wanted = [client + place - (place == 4) for place in range(5)]
        assert {name: array.tolist() for name, array in update.arrays.items()} == {
            name: [value] * 2 for name, value in zip(names, wanted, strict=True)
        }
