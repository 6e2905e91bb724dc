"""Folders of tables and of their base configs that a test fills itself, and quick workers."""

import pytest

from experiments.papers import files
from fedapps.compare import workers
from tests.support import sweeps


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The name of the only base config there is."""
    monkeypatch.setattr("experiments.papers.table.HERE", tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.toml").write_text('model = "cnn"\n')
    return "base"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return written(**texts) -> the tables of these texts of TOML by name, beside earlier ones."""
    monkeypatch.setattr(files, "HERE", tmp_path)
    (tmp_path / "tables").mkdir()

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / "tables" / f"{name}.toml").write_text(text)
        return files.tables()

    return write


@pytest.fixture(autouse=True)
def forks(monkeypatch):
    """Workers are forks, which start at once; tests/compare/test_workers.py has spawned ones."""
    monkeypatch.setattr(workers, "SPAWN", sweeps.FORK)
    monkeypatch.setattr(workers, "_serve", sweeps.serve)
