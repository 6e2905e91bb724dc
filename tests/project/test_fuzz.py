"""What comes over a wire or lies on a disk may be anything: readers raise what they declare."""

import pytest
from PIL import Image

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data.pictures import picture_of
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


@pytest.mark.parametrize("value", ["[" * 50_000, "9" * 5_000, '{a="' * 20_000])
def test_bombs_in_settings_are_refused_in_one_line(value, tmp_path):
    path = tmp_path / "bomb.toml"
    path.write_text(f"seed = {value}")
    for option in (f"seed={value}", str(path)):
        with pytest.raises(RunError) as error:
            config.read(config.parse([option]))
        assert "\n" not in str(error.value)


def test_a_picture_of_too_many_pixels_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.png"
    Image.new("1", (12_000, 12_000)).save(path)
    with pytest.raises(RunError, match="12000x12000 pixels are too many"):
        picture_of(path, (1, 8, 8))
