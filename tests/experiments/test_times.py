"""FedFC's seconds are computed without training; a run that trains counts the same ones."""

import pytest

from experiments import HERE
from experiments.figures.times import lines, times
from fedapps.engine.profiles import read

DEVICES = """
[server]
macs = 1e7
[[device]]
name = "slow"
clients = "0"
macs = 1e6
down = 2e4
up = 1e4
[[device]]
name = "fast"
macs = 5e6
down = 3e4
up = 2e4
"""


@pytest.mark.parametrize(("strategy", "cuts"), [
    ('strategy="fedavg"', (0, 0, 0)),
    ('strategy="fedfc" fedfc.cuts="1,2,3"', (1, 2, 3)),
    ('strategy="fedfc" fedfc.cuts="2"', (2, 2, 2)),
])  # fmt: skip
def test_a_run_takes_the_seconds_that_were_computed(
    strategy, cuts, serial_run, tiny_npz, read_rounds, workspace_of, tmp_path
):
    path = tmp_path / "devices.toml"
    path.write_text(DEVICES)
    folder = serial_run(
        f"{tiny_npz} {strategy} num-clients=3 fraction-train=1.0 num-rounds=1 local-epochs=2",
        f'devices="{path}"',
    )
    (row,), space = read_rounds(folder), workspace_of(folder)
    samples = [len(space.population.share(client).train) for client in range(3)]
    expected = times(space, read(str(path), 3, 0), cuts, samples, 2)
    assert row["virtual_seconds"] == pytest.approx(expected.round, rel=1e-12)
    assert len({*expected.clients}) == 3


def test_the_page_has_the_seconds_of_vgg16():
    page = (HERE.parent / "docs" / "results" / "fedfc.md").read_text("utf-8")
    for line in lines():
        assert f"| {' | '.join(line)} |" in page
