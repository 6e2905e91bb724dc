"""Predict and export with models of every kind of samples and task."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedapps.device import exporting, personalized, predictions, run_models
from fedapps.engine.finished import FinishedRun
from tests.support import kinds

RUN = 'strategy="fedper" num-rounds=1 fraction-train=1.0 local-epochs=1 finetune-epochs=0'


def in_units(outputs, trained):
    """Undo the scaling of targets: by the mean and deviation of all that clients train on."""
    targets = np.concatenate(trained).astype(float)
    return torch.from_numpy(outputs.numpy() * targets.std() + targets.mean()).float()


@pytest.mark.parametrize("kind", kinds.MODELS)
def test_a_client_predicts_without_the_run(kind, tmp_path, serial_run):
    """From the run, from a file and as a program: what the client itself computes."""
    run = FinishedRun.open(serial_run(kinds.options(tmp_path, kind), RUN))
    inputs = kinds.arrays(kind)[0][-5:]
    np.savez(tmp_path / "asked.npz", inputs=inputs)
    client = run.client(1)
    data = client.workspace.dataset
    samples = data.tensors(np.arange(len(data.target_values))[-5:])[0]
    with torch.no_grad():
        outputs = client.predict(samples)
    model = run_models.of_run(run, 1)
    exporting.export(model, tmp_path / "client.safetensors")
    for source in (model, personalized.load(tmp_path / "client.safetensors")):
        found, chances = personalized.predict(source, tmp_path / "asked.npz")
        np.testing.assert_array_equal(found, client.task.predict(outputs).numpy())
        assert (chances is None) == (kind in ("tokens", "regression"))
        lines = [*predictions.lines(source.about, found, chances)]
        assert [line.split()[0] for line in lines] == list("01234")
        assert all(len(line.split()) > 1 for line in lines)

    predictions.save(tmp_path / "found.csv", model.about, found, chances)
    table = pd.read_csv(tmp_path / "found.csv")
    assert list(table["sample"]) == [*range(5)]
    if kind in ("table", "series"):
        assert list(table["prediction"]) == [int(label) for label in outputs.argmax(1)]
        highest = outputs.softmax(1).amax(1).numpy()
        np.testing.assert_allclose(table["probability"], highest, rtol=1e-6)
    elif kind == "multilabel":
        there = [np.flatnonzero(row) for row in outputs.numpy() > 0]
        cells = table["prediction"].fillna("")
        assert list(cells) == ["; ".join(map(str, row)) for row in there]
        found[:] = False
        predictions.save(tmp_path / "none.csv", model.about, found, chances)
        rows = [f"{row},\n" for row in range(5)]
        assert (tmp_path / "none.csv").read_text() == "".join(["sample,prediction\n", *rows])
        assert [*predictions.lines(model.about, found, chances)] == [f"{row} -" for row in range(5)]
    else:
        if kind == "regression":
            outputs = in_units(outputs, [run.client(c).train_data[1] for c in range(4)])
        numbers = outputs.argmax(-1) if kind == "tokens" else outputs
        np.testing.assert_allclose(table.drop(columns="sample").to_numpy(), numbers, rtol=1e-6)

    exporting.export(model, tmp_path / "client.pt2")
    program = torch.export.load(tmp_path / "client.pt2").module()
    asked = torch.from_numpy(inputs)
    asked = asked.long() if data.inputs.is_whole else asked.float()
    with torch.no_grad():
        torch.testing.assert_close(program(asked), outputs, rtol=1e-4, atol=1e-5)
