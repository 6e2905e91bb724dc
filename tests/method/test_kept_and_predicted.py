"""Tools for methods that keep what clients sent, and what they predict with."""

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.core.errors import RunError
from fedapps.method import (
    BaseClient,
    BaseStrategy,
    CutModel,
    LateMixing,
    Mixing,
    Predictor,
    rehearse,
    under,
)

RUN = 'strategy="fedavg" model="mlp" num-clients=4 local-epochs=1 batch-size=8 lr=0.1'


class Late(LateMixing):
    """It keeps a number for each pair of clients."""

    by_pair = ("seen",)

    def warmup_rounds(self):
        return 1

    def personal_plan(self, round_, client):
        return self.warmup_plan(round_, client)

    def weights(self, client):
        return np.eye(4)[(client + 1) % 4]


def test_what_is_kept_of_pairs_of_clients_grows_both_ways():
    strategy = rehearse(Late, BaseClient, RUN.replace("=4", "=6", 1)).strategy
    strategy.state["seen"] = np.ones((4, 4))
    strategy.grow(4)
    seen = strategy.state["seen"]
    assert seen.shape == (6, 6) and seen[:4, :4].all() and seen.sum() == 16


def test_a_name_stands_for_one_array_and_a_prefix_for_many():
    class Named(Late):
        by_client = ("sent", "own/")

    strategy = rehearse(Named, BaseClient, RUN.replace("=4", "=6", 1)).strategy
    names = ("sent", "sent_count", "own/a", "own/b", "owner")
    strategy.state.update({name: np.ones(4) for name in names})
    strategy.grow(4)
    assert [len(strategy.state[name]) for name in names] == [6, 4, 6, 6, 4]


def test_a_method_names_only_what_it_keeps_beside_its_base():
    class Own(Mixing):
        by_client = ("own/mean",)
        by_pair = ("pairs",)

        def setup(self):
            super().setup()
            self.state["own/mean"] = np.zeros((6, 2))

    class More(Own):
        by_client = ("more",)
        by_mean = ("h/",)

    strategy = rehearse(More, BaseClient, RUN.replace("=4", "=6", 1)).strategy
    strategy.state |= {"more": np.ones(6), "h/a": np.ones(6)}
    strategy.grow(4)  # all rows are new ones beside the six
    last = {f"last/{key}" for key in strategy.mixed_keys}
    grown = {name for name, rows in strategy.state.items() if len(rows) == 8}
    assert grown == {"sent", "own/mean", "more", "pairs", *last}
    assert strategy.state["h/a"].tolist() == [4 / 6] * 6


@pytest.mark.parametrize("names", [["own/mean"], "own/mean"])
def test_names_that_are_no_tuple_are_refused_when_the_class_is_made(names):
    with pytest.raises(RunError, match=r"^Own\.by_client = .*: must be a tuple of names"):
        type("Own", (Mixing,), {"by_client": names})


def test_a_property_says_all_itself():
    class Own(Mixing):
        @property
        def by_client(self):
            return ("own/mean",) if self.settings.num_clients == 6 else ()

    strategy = rehearse(Own, BaseClient, RUN.replace("=4", "=6", 1)).strategy
    assert strategy.grows("own/mean") and not strategy.grows("sent")


def test_who_has_joined_and_sent_nothing_has_the_initial_arrays():
    class Mixed(Mixing):
        citation = "none"

    strategy = rehearse(Mixed, BaseClient, RUN.replace("=4", "=6", 1)).strategy
    initial = {key: value.copy() for key, value in strategy.arrays.items()}
    for rows in strategy.state.values():
        rows.resize((4, *rows.shape[1:]), refcheck=False)
    for value in strategy.arrays.values():
        value += 1  # the server's model has moved on
    strategy.grow(4)
    assert not strategy.state["sent"][4:].any()
    for key in strategy.mixed_keys:
        for row in strategy.state[f"last/{key}"][4:]:
            np.testing.assert_array_equal(row, initial[key])


def test_a_predictor_has_its_parts_under_their_names():
    run = rehearse(BaseStrategy, BaseClient, RUN)
    model, layout = run.make(0).model, run.strategy.layout
    made = CutModel(model, layout, memory=torch.ones(2), more=nn.Linear(2, 2))
    assert {"memory", "more.weight", "more.bias"} < {*made.state_dict()}
    x = run.make(0).train_data[0]
    torch.testing.assert_close(made.head(made.body(x)), model.eval()(x))
    assert not made.training
    both = Predictor(parts=[nn.Linear(1, 1), nn.Linear(1, 1)])
    assert isinstance(both.parts, nn.ModuleList) and len([*both.parameters()]) == 4


def test_under_a_prefix():
    arrays = {"c/a": 1, "c/b": 2, "d/a": 3}
    assert under(arrays, "c/") == {"a": 1, "b": 2}
