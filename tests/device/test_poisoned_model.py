"""A model that nobody can train any more ends a run of devices, though it can be scored."""

import numpy as np
import pytest

from fedapps import client_app
from fedapps.core.errors import RunError


def test_devices_that_all_fail_end_the_run(device_run, monkeypatch, read_csv, tmp_path, capsys):
    """One of them sends the largest values that pass; from round 2 on nobody trains."""
    fit = client_app._fit

    def poison(space, request, *others):
        update = yield from fit(space, request, *others)
        if request.client == 2:
            for key, value in update.arrays.items():
                update.arrays[key] = np.full_like(value, 9e5)
        return update

    monkeypatch.setattr(client_app, "_fit", poison)
    line = r"^round 4: 3 of 3 clients failed \(all failed\); client 0: training diverged"
    with pytest.raises(RunError, match=line):
        device_run('strategy="fedavg" num-rounds=8 evaluate-every=1 run-name="x"')
    rows = read_csv(tmp_path / "runs" / "x", "rounds.csv")
    assert [row["failures"] for row in rows] == ["0", "3", "3"]
    assert all(row["accuracy_initial"] for row in rows)  # scored all the time
    assert capsys.readouterr().out.count("warning: round 2: training diverged at 3 of 3") == 1
