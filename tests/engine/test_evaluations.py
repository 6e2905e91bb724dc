"""Which layers of the scored models a run says are shared, and which personal."""

import pytest

from fedapps.core import config
from fedapps.engine.evaluations import layers_told
from fedapps.method import BaseStrategy, replace
from fedapps.training.workspace import Workspace


class Clusters(BaseStrategy):
    """Clients get two models as further arrays, choose one, train it and upload it."""

    def plan(self, round_, client):
        names = self.layout.names
        plan = replace(self.exchange(round_, names, self.stage(round_, names)), download=())
        shapes = {f"m{j}/{key}": self.layout.shapes[key] for j in (0, 1) for key in self.travels()}
        return replace(plan, receives=shapes)

    def travels(self):
        return self.layout.shared(self.layout.names)

    def evaluation_plan(self, round_, client):
        return replace(self.plan(round_, client), stages=(), upload=(), sends={})


class Bodies(Clusters):
    """Of two models without heads; a client's head never leaves it."""

    def travels(self):
        return self.layout.shared(self.layout.body)

    def plan(self, round_, client):
        return replace(super().plan(round_, client), upload=self.layout.body)


class Beside(Clusters):
    """What clients have trained travels to the server as further arrays, too."""

    def plan(self, round_, client):
        sends = {f"new/{key}": self.layout.shapes[key] for key in self.travels()}
        return replace(super().plan(round_, client), upload=(), sends=sends)


class Prototypes(Clusters):
    """A client's model never leaves it; it sends and gets something else."""

    def plan(self, round_, client):
        shapes = {"p/mean": (3, 84)}
        return replace(super().plan(round_, client), upload=(), receives=shapes, sends=shapes)


class OwnModels(Clusters):
    """Clients upload what others get in a round, but what is scored is their own model."""

    def evaluation_plan(self, round_, client):
        return replace(super().evaluation_plan(round_, client), receives={})


@pytest.mark.parametrize(("strategy", "told"), [
    (BaseStrategy, "all shared"),
    (Clusters, "all shared"),
    (Beside, "all shared"),
    (Bodies, "shared conv1, conv2, fc1; personal fc2"),
    (Prototypes, "all personal"),
    (OwnModels, "all personal"),
])  # fmt: skip
def test_layers_of_which_clients_get_several_versions_are_shared(
    strategy, told, flat_config, tiny_npz
):
    """They travel as further arrays, of which the client makes the model that is scored."""
    made = strategy(Workspace(config.read(flat_config(tiny_npz))))
    assert layers_told(made, 1) == told
