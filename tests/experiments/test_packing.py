"""Finished runs are packed beside processes that add runs, pack them, or look at them."""

import os
from collections import Counter
from threading import Event, Thread

import pytest

from experiments.papers.table import Cell, Row, Scale, Table
from experiments.run import store as store_module
from experiments.run.store import Store
from tests.support.papers import run_of

ROWS = tuple(Row(name, f'strategy="{name}"') for name in ("fedavg", "fedper", "fedrep"))
SCALES = {"smoke": Scale("num-rounds=1", seeds="0")}


@pytest.fixture
def cells(base):
    table = Table("t", "T", base, rows=ROWS, columns={"hot": ""}, scales=SCALES)
    return [Cell(table, row, "hot", "smoke") for row in ROWS]


def add(store, cell, seconds, old=True):
    """Save a run, as if that had been a minute ago."""
    store.save(cell, run_of(cell, 0, seconds=seconds))
    if old:
        path = store.path(cell, 0)
        os.utime(path, ns=(path.stat().st_mtime_ns - 60 * 10**9,) * 2)


def found(folder):
    return Counter({run.cell: run.seconds for run in Store(folder).runs()})


@pytest.fixture
def meanwhile(monkeypatch):
    """Return meanwhile(work): it is done as soon as a file is written, or waits for its turn then.

    It is done by another thread, as another process would; meanwhile() waits until it is done.
    """
    threads = []

    def meanwhile(work=None):
        if work is None:
            return [thread.join() for thread in threads]
        ready, write, turn = Event(), store_module.write_whole, store_module.in_turn

        def does():
            work()
            ready.set()

        def waits(path):
            ready.set()
            return turn(path)

        def writes(*of):
            monkeypatch.setattr(store_module, "write_whole", write)
            monkeypatch.setattr(store_module, "in_turn", waits)
            threads.append(Thread(target=does))
            threads[0].start()
            ready.wait()
            write(*of)

        monkeypatch.setattr(store_module, "write_whole", writes)

    return meanwhile


def test_two_that_pack_at_once_lose_nothing(cells, tmp_path, meanwhile):
    first, second = Store(tmp_path), Store(tmp_path)
    add(first, cells[0], 1.0)

    def packs():
        add(second, cells[1], 2.0)
        second.pack()

    meanwhile(packs)
    first.pack()
    meanwhile()
    assert found(tmp_path) == {cells[0].name: 1.0, cells[1].name: 2.0}


def test_a_run_that_is_saved_again_beside_packing_stays(cells, tmp_path, meanwhile):
    store, runner = Store(tmp_path), Store(tmp_path)
    add(store, cells[0], 1.0)
    meanwhile(lambda: add(runner, cells[0], 3.0, old=False))
    store.pack()
    meanwhile()
    assert found(tmp_path) == {cells[0].name: 3.0}


def test_who_packs_reads_a_run_that_was_saved_again(cells, tmp_path):
    store = Store(tmp_path)
    add(store, cells[0], 1.0)
    assert [run.seconds for run in store.runs()] == [1.0]
    add(Store(tmp_path), cells[0], 3.0)
    store.pack()
    assert found(tmp_path) == {cells[0].name: 3.0} and not store.path(cells[0], 0).exists()


@pytest.mark.parametrize("step", ["_packed", "_files"])
def test_who_looks_while_another_packs_sees_all(cells, tmp_path, monkeypatch, step):
    for cell in cells:
        add(Store(tmp_path), cell, 1.0)
    looks, other, real = Store(tmp_path), Store(tmp_path), getattr(Store, step)

    def then(self, *of):
        answer = real(self, *of)
        monkeypatch.setattr(Store, step, real)
        other.pack()
        return answer

    monkeypatch.setattr(Store, step, then)
    assert {run.cell for run in looks.runs()} == {cell.name for cell in cells}
    assert [path.name for path in tmp_path.rglob("*.json*")] == ["t.jsonl"]
    add(Store(tmp_path), cells[0], 2.0)
    assert looks.find(cells[0], 0).seconds == 2.0
