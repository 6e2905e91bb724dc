"""The process of a sweep's runs as users have it, started anew and not forked."""

import pandas as pd
import pytest

from fedapps.compare.workers import Worker, stop
from fedapps.core.errors import RunError

pytestmark = pytest.mark.slow


def test_a_worker_runs_as_this_process(flat_config, tiny_npz, serial_run, untimed_rounds, tmp_path):
    options = [tiny_npz, "num-clients=4 num-rounds=2 model=lenet5"]
    worker, log = Worker(), tmp_path / "logs" / "log.txt"
    try:
        with pytest.raises(RunError, match=rf"num-clients.*; see {log}$"):
            worker.run(flat_config(*options, "num-clients=1000"), log, plots=False)
        process = worker.process
        folder = worker.run(flat_config(*options), log, plots=False)
        assert worker.process is process and process.is_alive()
    finally:
        stop([worker])
    assert not process.is_alive()
    assert len(pd.read_csv(folder / "rounds.csv")) == 2
    assert " round 2/2 " in f" {log.read_text('utf-8')}".replace("\n", " ")
    assert untimed_rounds(folder) == untimed_rounds(serial_run(*options))
