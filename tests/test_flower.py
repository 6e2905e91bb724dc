"""The same run through `flwr run` on Ray and on the serial engine: the same numbers."""

import csv
import os
from pathlib import Path

import pytest

from fedapps import config, launch, serial

ROOT = Path(__file__).parent.parent
RUN = (
    'strategy="fedbabu" num-clients=6 num-rounds=2 local-epochs=1 batch-size=32 fraction-train=0.5 '
    "finetune-epochs=1"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A Flower home of its own, with a SuperLink that ends with the tests."""
    path = tmp_path_factory.mktemp("flower")
    yield path
    launch.stop(path)


def outcome(folder: Path) -> tuple[list, bytes, bytes]:
    with (folder / "rounds.csv").open() as file:
        rounds = [{**row, "seconds": ""} for row in csv.DictReader(file)]
    files = ((folder / name).read_bytes() for name in ("clients.csv", "model.safetensors"))
    return rounds, *files


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "cpus"), [(2, 1), (1, 2), (5, 1)])
def test_ray_gives_the_numbers_of_the_serial_engine(home, tmp_path, nodes, cpus):
    """2 SuperNodes on two actors (where there are 2 cores), 1 on one actor, 5 on two actors."""
    mine = serial.run_serial(config.parse([f'{RUN} runs-dir="{tmp_path}" run-name="serial"']))
    result = launch.launch(
        ROOT,
        [f'{RUN} runs-dir="{tmp_path}" run-name="ray"'],
        f"num-supernodes={nodes} client-resources-num-cpus={min(cpus, os.cpu_count() or 1)}",
        home=home,
    )
    assert result.completed, result.error
    assert outcome(tmp_path / "ray") == outcome(mine)


@pytest.mark.slow
def test_a_bad_value_ends_a_flower_run_as_failed_with_one_line(home, tmp_path):
    result = launch.launch(ROOT, [f'alpha=0.0 runs-dir="{tmp_path}"'], home=home)
    assert result.status == "finished:failed"
    assert result.error == "alpha = 0.0: must be float > 0"
    assert not list(tmp_path.iterdir())
