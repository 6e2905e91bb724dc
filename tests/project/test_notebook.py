"""The notebook of the pages runs, cell by cell, in a kernel of its own."""

import math

import nbclient
import nbformat
import pytest

import fedapps
from tests.support import ROOT

NOTEBOOK = ROOT / "docs" / "first-steps.ipynb"


def outputs(cell, kind):
    """Return a cell's outputs of a MIME type; printed text is `stdout`."""
    printed = [o["text"] for o in cell.outputs if o.output_type == "stream"]
    return printed if kind == "stdout" else [o.data[kind] for o in cell.outputs if kind in o.data]


def test_it_is_committed_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
def test_every_cell_runs_and_shows_what_it_says(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    of = {cell.source.splitlines()[-1]: cell for cell in notebook.cells if cell.source}
    first = notebook.cells[1]
    assert "ROUNDS = 5" in first.source and '"data_root"' in first.source
    quick = first.source.replace("ROUNDS = 5", "ROUNDS = 2")
    short = '"local_epochs": 1, "finetune_epochs": 1, "data_root"'
    first.source = quick.replace('"data_root"', short)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": tmp_path}}
    ).execute()

    trained = of["fedper"]
    assert not outputs(trained, "stdout")  # one line for each run, which was replaced in place
    lines = outputs(trained, "text/plain")
    assert len(lines) == 3 and all(line.startswith("round 2/2") for line in lines[:2])
    (shown,) = outputs(trained, "text/html")
    runs = {
        path.name.partition("-")[0]: fedapps.load(path) for path in (tmp_path / "runs").iterdir()
    }
    score = 100 * runs["fedper"].summary["accuracy_personalized"]
    assert f"<td>{score:.1f} %</td>" in shown and str(runs["fedper"].path) in shown

    assert outputs(of["both.plot()"], "image/png")
    (latex,) = outputs(of["print(both.to_latex())"], "stdout")
    assert latex == fedapps.compare([runs["fedavg"], runs["fedper"]]).to_latex() + "\n"
    last = notebook.cells[-1].outputs[0].data["text/plain"]
    value, page = last.strip("()").split(", ")
    assert math.isclose(100 * float(value), score) and page == "'report.html'"
