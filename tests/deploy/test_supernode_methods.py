"""Methods on a real SuperLink and two SuperNodes: the numbers of the serial engine."""

import pytest

from deploy.deployment import Deployment
from fedapps.core import config, registry
from fedapps.serial import run_serial
from fedapps.split.strategy import SplitStrategy
from tests.deploy.helpers import outcome
from tests.support import kinds
from tests.support.methods import each_method, needed

pytestmark = pytest.mark.deployment

# A run takes half a minute, most of it to load PyTorch three times. So what travels in ways of its
# own (activations, votes, control variates, models that a network makes) does so in the test of all
# kinds of samples, but for several models, which need images.
USUAL = ("fedem",)
KINDS = kinds.SOME | {"tokens": "scaffold", "regression": "pfedhn"}
ALL = ["num-clients=4 num-rounds=2 fraction-train=1.0 local-epochs=2 batch-size=8 threads=1"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """Two SuperNodes without data, which serve the clients of any data set."""
    with Deployment(tmp_path_factory.mktemp("deployment")) as running:
        names = ("pair-0", "pair-1")
        running.register(*names)
        for name in names:
            running.supernode(name)
        yield running


@pytest.fixture
def both(deployment, tmp_path):
    """Return both(strategy, *run_config): check a run on SuperNodes against the serial engine."""

    def check(strategy, *run_config):
        run = [*ALL, *run_config, f'strategy="{strategy}" runs-dir="{tmp_path}" min-available=2']
        if issubclass(registry.strategy_class(strategy), SplitStrategy):
            run.append(f'channel-tls="{deployment.certificates}"')
        result = deployment.run(*run, 'run-name="real"')
        assert result.completed, result.error
        mine = run_serial(config.parse([*run, 'min-available=1 run-name="serial"']))
        assert outcome(tmp_path / "real") == outcome(mine)

    return check


@pytest.mark.slow
@pytest.mark.parametrize("strategy", each_method(usual=USUAL))
def test_every_method_runs_on_supernodes(strategy, both, tiny_npz):
    """Two rounds on two SuperNodes, split methods through their channel: the serial numbers."""
    both(strategy, tiny_npz, needed(strategy))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "strategy"), KINDS.items())
def test_every_kind_of_samples_and_targets_runs_on_supernodes(kind, strategy, both, tmp_path):
    both(strategy, kinds.options(tmp_path, kind))


@pytest.mark.slow
def test_people_that_the_data_name_and_those_who_come_later(both, tmp_path, data_root):
    """Watch with a client for each of ten people, two of them newcomers, and one's own model."""
    path = tmp_path / "mine.py"
    path.write_text(kinds.OWN_MODEL)
    people = f'dataset="watch" data-root="{data_root}" partitioner="natural" split="official"'
    later = f'unseen-clients="0.2" few-shot=2 model="{path}:make"'
    both("fedper", people, later, "num-clients=0 local-epochs=1 batch-size=64 num-rounds=1")
