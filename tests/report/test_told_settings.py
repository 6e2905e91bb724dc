"""What summary.json and the folder's name tell of a run's settings."""

import re

import pytest
from msgspec import structs

from fedapps.core import changes, config
from fedapps.report import directory
from fedapps.report.columns import columns_of
from fedapps.report.report import Report
from fedapps.report.summary import summarize
from fedapps.tasks import CLASSIFICATION

CHANGED = (
    'strategy="fedprox" dataset="/d/tiny.npz" evaluate-on="validation" validation-fraction=0.2 '
    'num-clients=6 num-rounds=1 prox-mu=0.5 fedper.personal-layers="fc2" threads=2 seed=4'
)


def test_summary_and_folder_tell_scored_samples_and_what_was_changed(tmp_path):
    flat = config.parse([CHANGED])
    settings = config.read(flat)
    summary = summarize(settings, [], columns_of(CLASSIFICATION), 1.0)
    assert summary["evaluate_on"] == "validation"
    assert summary["changed"] == {
        "validation-fraction": 0.2, "num-clients": 6, "num-rounds": 1, "prox-mu": 0.5,
        "evaluate-on": "validation",
    }  # fmt: skip
    assert re.fullmatch(
        r"fedprox-tiny-validation-validation-fraction=0.2-num-clients=6-num-rounds=1-prox-mu=0.5-"
        r"s4-\d{8}-\d{6}",
        Report.create(structs.replace(settings, runs_dir=str(tmp_path)), flat).folder.name,
    )


@pytest.mark.parametrize("told", ["", 'strategy="fedprox" prox-mu=0.01', "threads=4 presum=true"])
def test_what_a_method_does_by_default_is_no_change(told):
    flat = config.parse([told])
    assert changes.changed(flat) == {}
    assert changes.name_of(flat) == f"{flat['strategy']}-digits-s0"


def test_a_base_methods_keys_count():
    flat = config.parse(['strategy="fedseq" fedseq.base="fedrep" fedrep.head-epochs=3'])
    assert changes.changed(flat) == {"fedseq.base": "fedrep", "fedrep.head-epochs": 3}
    assert "fedrep.body-epochs" in changes.counting(flat)
    assert not [key for key in changes.counting(flat) if key.startswith("ditto")]


@pytest.mark.parametrize(("data", "unread"), [
    ("partitioner=iid", "alpha=7 shards-per-client=9 min-samples=3 sizes=0.9,0.1"),
    ("partitioner=natural min-samples=4", "alpha=7 dirichlet-balance=false"),
    ("dataset=device num-clients=4", "partitioner=shards shards-per-client=9 min-samples=3"),
])  # fmt: skip
def test_keys_that_the_partitioner_does_not_read_do_not_count(data, unread):
    plain, more = (config.parse([data, words]) for words in ("", unread))
    assert changes.counting(plain) == changes.counting(more)
    assert changes.changed(plain) == changes.changed(more)
    assert {*data.replace("=", " ").split()} >= changes.changed(more).keys()


@pytest.mark.parametrize(("given", "run"), [
    ("strategy=fedper partitioner=iid alpha=0.5 num-clients=7", "9e0efec2"),
    ("strategy=fedper lr=0.05", "07392eac"),
    ("strategy=fedseq fedseq.base=fedrep lr=0.05", "aab4da87"),
    ("strategy=fedprox fedprox.prox-mu=0.5", "7d5a6ed5"),
    ("strategy=fedper lr=0.05 patience=2 metric=macro_f1 validation-fraction=0.2"
     " evaluate-on=validation", "8327efd3"),
])  # fmt: skip
def test_a_state_keeps_its_owner_from_version_to_version(given, run):
    """Earlier versions have named these; keys that a partitioner does not read are in the name."""
    settings = config.read(config.parse([given]))
    assert changes.owner(settings, 3) == f"client 3 of run {run}"


def test_a_number_is_the_same_however_it_is_written():
    """A key without and with defaults of methods, one of the method's own, and a whole number."""
    ways = ("max-norm=2 lr=1 ditto.lambda=3", "max-norm=2.0 lr=1.0 ditto.lambda=3.0")
    parsed = [config.parse([f'strategy="ditto" local-epochs=7 {way}']) for way in ways]
    assert parsed[0] == parsed[1] and repr(parsed[0]) != repr(parsed[1])
    settings = [config.read(flat) for flat in parsed]
    for one, other in (
        [changes.digest(flat) for flat in parsed],
        [changes.name_of(flat) for flat in parsed],
        [changes.owner(s, 3) for s in settings],
        [repr(s.flat) for s in settings],  # from which a device names the folder of its state
    ):
        assert one == other


def test_a_name_says_how_much_it_leaves_out():
    many = "num-clients=100 alpha=0.5 num-rounds=77 local-epochs=3 batch-size=64 lr=0.1"
    flat = config.parse([many, "momentum=0.9 head-layers=2"])
    assert changes.name_of(flat) == (
        "fedbabu-digits-alpha=0.5-num-clients=100-head-layers=2-num-rounds=77-local-epochs=3-"
        "batch-size=64-lr=0.1-and-1-more-s0"
    )


def test_a_name_says_first_what_does_not_describe_the_data():
    data = 'columns="age,sex=f|m,crp,lactate" missing="mean" target-column="died" num-clients=8'
    flat = config.parse([f'strategy="fedper" {data} dp.mode="central" dp.noise-multiplier=0.5'])
    name = changes.name_of(flat | {"num-rounds": 30, "test-fraction": 0.3})
    first = "num-clients=8-num-rounds=30-dp.mode=central-dp.noise-multiplier=0.5"
    assert name == f"fedper-digits-{first}-target-column=died-and-3-more-s0"


@pytest.mark.parametrize("letter", ["x", "ü", "語", "𠮷"])
@pytest.mark.parametrize("more", ["", " ".join(f"num-{k}=123456" for k in ("rounds", "clients"))])
def test_long_names_of_data_are_cut_for_a_folder(letter, more, tmp_path):
    names = [f"病{letter * (n // len(letter.encode()))}" for n in (240, 241, 245, 249)]
    keys = [config.parse([f'dataset="/d/{name}.npz" {more}']) for name in names]
    found = {changes.name_of(flat) for flat in keys}
    assert len(found) == len({*names}), "what is left out is told by a digest"
    assert all(name.startswith(f"fedbabu-病{letter}") for name in found)
    for name in found:
        directory.make(tmp_path, "", name)
    assert {path.name[:-16] for path in tmp_path.iterdir()} == found
    short = config.parse([f'dataset="/d/{letter * 15}.npz"'])
    assert changes.name_of(short) == f"fedbabu-{letter * 15}-s0"


def test_many_changes_with_letters_of_many_bytes_make_no_name_that_is_too_long(tmp_path):
    keys = (f'{key}="{"語" * 30}"' for key in ("initial-model", "class-names", "unseen-clients"))
    directory.make(tmp_path, "", changes.name_of(config.parse([*keys])))


def test_what_is_incidental_is_a_key():
    assert config.defaults().keys() >= changes.INCIDENTAL | changes.DESCRIBING


@pytest.mark.parametrize("more", ["num-clients=9 num-rounds=99", "metric=macro_f1", "threads=2"])
def test_a_state_keeps_its_owner_when_a_run_grows_or_is_told_in_another_way(more):
    given = 'strategy="fedper" lr=0.05 num-clients=7'
    one, other = (config.read(config.parse([given, words])) for words in ("", more))
    faster = config.read(config.parse([given, "lr=0.06"]))
    assert changes.owner(one, 3) == changes.owner(other, 3) != changes.owner(one, 4)
    assert changes.owner(one, 3) != changes.owner(faster, 3)


def test_a_state_keeps_its_owner_when_a_key_comes(monkeypatch):
    """It has its default value in all runs that exist."""
    settings = config.read(config.parse(['strategy="fedper" lr=0.05 bn-local=true']))
    before, all_of = changes.owner(settings, 3), changes.counted
    monkeypatch.setattr(changes, "counted", lambda flat: {**all_of(flat), "new-key": 1})
    changes._run.cache_clear()
    assert changes.owner(settings, 3) == before
    changes._run.cache_clear()
