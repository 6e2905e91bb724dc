"""The same run through `flwr run` on Ray and on the serial engine: the same numbers."""

import os

import pytest

from fedapps import launch, serial
from fedapps.core import config
from tests.support import ROOT, kinds
from tests.support.killed import differences
from tests.support.marks import LONG, THOROUGH

pytestmark = pytest.mark.slow

BASE = "num-clients=6 num-rounds=2 local-epochs=1 batch-size=32 finetune-epochs=1"
TWO = "num-supernodes=2 client-resources-num-cpus=1"
LIMITS = "join-timeout=600.0 step-timeout=600.0"  # that no process needs, however slow it starts
RUN = f'strategy="fedbabu" fraction-train=0.5 {BASE}'
SPLIT = f'strategy="fedfc" fedfc.cuts="1,2,3,1,2,3" fraction-train=1.0 {BASE} {LIMITS}'


@pytest.fixture
def outcome(untimed_rounds):
    """Return read(folder) -> what two runs that computed the same have in common."""

    def read(folder):
        names = ("clients.csv", "unseen.csv", "model.safetensors")
        files = [folder / name for name in names if (folder / name).exists()]
        return untimed_rounds(folder), {file.name: file.read_bytes() for file in files}

    return read


@pytest.fixture
def both(home, tmp_path, outcome):
    """Return both(*run_config, federation, of_ray): check a run on Ray against the serial one."""

    def check(*run_config, federation, of_ray=""):
        options = [*run_config, f'runs-dir="{tmp_path}"']
        mine = serial.run_serial(config.parse([*options, 'run-name="serial"']))
        result = launch.launch(ROOT, [*options, f'run-name="ray" {of_ray}'], federation, home=home)
        assert result.completed, result.error
        assert outcome(tmp_path / "ray") == outcome(mine)

    return check


@pytest.mark.parametrize(("nodes", "cpus"), [(2, 1), LONG(1, 2), LONG(5, 1)])
def test_ray_gives_the_numbers_of_the_serial_engine(both, outcome, tmp_path, nodes, cpus):
    """2 SuperNodes on two actors (where there are 2 cores), 1 on one actor, 5 on two actors.

    The model is one's own, a file outside the app; two clients come later; time is virtual.
    """
    path, cpus = tmp_path / "mine.py", min(cpus, os.cpu_count() or 1)
    path.write_text(kinds.OWN_MODEL)
    federation = f"num-supernodes={nodes} client-resources-num-cpus={cpus}"
    more = 'unseen-clients="0.4" few-shot=3 devices="lognormal"'
    both(RUN, LIMITS, more, f'model="{path}:make"', federation=federation)
    assert outcome(tmp_path / "ray")[1]["unseen.csv"].count(b"\n") == 3


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        THOROUGH("tokens", 'num-rounds=3 devices="lognormal" deadline=0.1 late="later"'),
        THOROUGH("table", ""),
        THOROUGH("regression", 'unseen-clients="0.4" few-shot=3'),
        THOROUGH("multilabel", "adapter-rank=4 secure-sum=true fraction-train=1.0"),
    ],
)
def test_ray_gives_them_for_every_kind_of_samples_and_targets(both, tmp_path, kind, more):
    """And for virtual time, newcomers, adapters, and sums that nobody can look into."""
    strategy = f'strategy="{kinds.SOME[kind]}"'
    both(RUN, LIMITS, kinds.options(tmp_path, kind), strategy, more, federation=TWO)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        'strategy="fedavg" devices="lognormal" round-mode="async" buffer=2',
        'strategy="fedper" secure-sum=true dp.mode="distributed" dp.noise-multiplier=0.01',
        'dataset="watch" strategy="fedcmd" model="cnn1d" num-clients=0 fraction-train=0.5 '
        'partitioner="natural" split="official"',
    ],
    ids=["async", "secure", "people"],
)
def test_ray_gives_them_for_other_rounds_and_people_that_the_data_name(both, data_root, options):
    both(RUN, LIMITS, f'fraction-train=1.0 data-root="{data_root}"', options, federation=TWO)


@pytest.mark.parametrize("strategy", [LONG("fedper"), LONG("fedcmd"), LONG("feddyn")])
def test_a_run_that_was_killed_in_one_process_goes_on_on_ray(home, tmp_path, strategy):
    """Its checkpoint of the second round is what is left of it."""
    options = [RUN, f'strategy="{strategy}" num-rounds=4 runs-dir="{tmp_path}"']
    whole = serial.run_serial(config.parse([*options, 'run-name="whole"']))
    killed = serial.run_serial(config.parse([*options, 'num-rounds=2 run-name="killed"']))
    result = launch.launch(ROOT, [f'resume="{killed}" num-rounds=4'], TWO, home=home)
    assert result.completed, result.error
    assert differences(whole, killed) == []


@pytest.mark.parametrize("spread", [LONG(0), THOROUGH(2)])
def test_split_learning_on_ray_gives_the_numbers_of_the_serial_engine(both, spread):
    """All clients on one SuperNode in threads, and three each on two that work at the same time."""
    both(SPLIT, federation=TWO, of_ray=f"channel-nodes={spread}")


@pytest.mark.long
def test_too_few_workers_for_split_clients_end_a_run_on_ray(home, tmp_path):
    """Five SuperNodes on two cores: as many actors as CPUs, and the cure in the message."""
    options = [f'{SPLIT} channel-nodes=5 runs-dir="{tmp_path}"']
    config_ = "num-supernodes=5 client-resources-num-cpus=1 init-args-num-cpus=2"
    result = launch.launch(ROOT, options, config_, home=home)
    assert result.status == "finished:failed"
    assert "5 SuperNodes must work at the same time, but 2 can" in result.error
    assert "init-args-num-cpus=5" in result.error
