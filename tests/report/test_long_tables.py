"""Tables with many rows: those of the last round are read from the end, those that grow once."""

import csv
import tracemalloc
from itertools import chain

import pytest

from fedapps.report import directory, frames
from fedapps.report.page import reading
from fedapps.report.page.reading import RunFiles, TableReader

HEAD = "round,client,accuracy_personalized,name\n"


def lines(round_, clients, value="0.5"):
    return "".join(f"{round_},{client},{value},Zürich {client}\n" for client in range(clients))


def read_whole(path):
    """The rows of each round of a table, by a reader of all of it."""
    rounds = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rounds.setdefault(row["round"], []).append(row)
    return [*rounds.values()]


@pytest.mark.parametrize("block", [1, 7, 100, 10_000])
@pytest.mark.parametrize("text", [
    HEAD + lines(1, 3) + lines(11, 4) + lines(111, 2),
    HEAD + lines(1, 1),
    HEAD + lines(1, 30) + "2,0,0.1,a",
    HEAD,
    "",
])  # fmt: skip
def test_rounds_come_from_the_end_in_blocks_of_any_size(block, text, tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "BLOCK", block)
    path = tmp_path / "clients.csv"
    path.write_text(text, "utf-8")
    found = [directory.rows_of(map(bytes.decode, part)) for part in directory.backwards(path)]
    assert found == read_whole(path)[::-1]
    assert RunFiles.read(tmp_path).clients == (found or [[]])[0]


def test_the_last_evaluation_does_not_take_the_memory_of_all(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(HEAD + "".join(lines(round_, 200) for round_ in range(1, 1000)), "utf-8")
    tracemalloc.start()
    try:
        assert len(RunFiles.read(tmp_path).clients) == 200
        found = frames.last(path, "accuracy_personalized")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < path.stat().st_size / 2
    assert found["round"].tolist() == [999] * 200 and found["name"].iloc[-1] == "Zürich 199"


def test_a_round_without_values_is_not_the_last_of_a_column(tmp_path):
    path = tmp_path / "clients.csv"
    path.write_text(HEAD + lines(1, 3) + lines(2, 3) + lines(3, 3, ""), "utf-8")
    assert frames.last(path, "accuracy_personalized")["round"].tolist() == [2] * 3
    path.write_text(HEAD + lines(1, 3, ""), "utf-8")
    assert len(frames.last(path, "accuracy_personalized")) == 0


def test_a_table_that_grows_is_parsed_once(tmp_path, monkeypatch):
    path, parsed, parse = tmp_path / "events.csv", [], reading.rows_of

    def counted(lines):
        found = parse(lines)
        parsed.append(len(found))
        return found

    monkeypatch.setattr(reading, "rows_of", counted)
    read, text = TableReader(), HEAD + lines(1, 50)
    assert read(path) == []
    path.write_text("round,cli")
    assert read(path) == []
    for more in ("", lines(2, 3), "3,0,0.2,Zür", "ich\n4,1,0.3,b\n"):
        text += more
        path.write_text(text, "utf-8")
        assert read(path) == [*chain(*read_whole(path))]
    assert sum(parsed) == 50 + 3 + 1 + 2  # a line that is not whole is parsed again
    path.write_text(HEAD + lines(7, 2), "utf-8")
    assert read(path) == [*chain(*read_whole(path))] and len(read(path)) == 2
