"""What comes over a wire or lies on a disk may be anything: readers raise what they declare."""

import pytest

from tests.support import fuzz

NAMES = ("arrays", "frames", "config", "config-file", "npz", "state", "checkpoint")


@pytest.mark.parametrize("name", NAMES)
def test_readers_raise_what_they_declare(name, tmp_path):
    """`python -m tests.support.fuzz 100000` is the long test."""
    found = fuzz.readers(tmp_path)
    assert tuple(found) == NAMES
    reader = found[name]
    for sample in reader.samples:
        try:
            reader.read(sample)
        except reader.declared:
            assert name == "arrays"  # most samples have another dtype or shape
    result = fuzz.fuzz(reader, 300, seed=1)
    assert result["read"] > 0 and result["faults"] == {}
