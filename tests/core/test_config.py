"""The run-config: every key is checked, defaults stand once, and errors say what is allowed."""

import re
import tomllib
from operator import attrgetter
from pathlib import Path

import msgspec
import pytest
from flwr.common.config import flatten_dict
from hypothesis import given
from hypothesis import strategies as st

from fedapps.core import config, keys, project, registry
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings

PYPROJECT = Path(config.__file__).parents[2] / "pyproject.toml"
MADE_BY_READ = {"method", "flat"}  # fields of Settings that are no keys
INF = float("inf")
NAN = float("nan")

WORDS = {
    "split": "merged, official, last",
    "partitioner": "dirichlet, shards, sizes, classes, iid, natural",
    "optimizer": "sgd, adam, adamw", "lr-schedule": "constant, step, cosine",
    "clip-mode": "batch, sample", "augment": "none, crop-flip", "bn-stats": "shared, local, batch",
    "finetune-part": "full, head, body", "evaluate-on": "test, validation",
    "missing": "refuse, mean, drop",
    "task": "auto, classification, regression, multilabel, tokens",
    "server-optimizer": "none, momentum, adam, adagrad, yogi",
    "aggregation": "mean, median, trimmed-mean, krum, multi-krum, geometric-median, clipped",
    "attack": "none, sign-flip, label-flip, scaled, alie, inflated-count",
    "server-part": "full, body", "client-state": "keep, reset", "device": "auto, cpu, cuda",
    "late": "drop, later",
    "round-mode": "sync, async", "dp.mode": "none, central, distributed, local",
    "dp.sampling": "poisson, fixed",
}  # fmt: skip
TEXTS = [
    "dataset", "data-root", "sizes", "classes-per-client", "model", "runs-dir", "run-name",
    "channel-address", "channel-reach", "channel-tls", "input-shape", "class-names", "loggers",
    "evaluate-rounds", "resume", "initial-model", "adapter-layers", "unseen-clients",
    "target-column", "client-column", "columns", "devices", "federation", "metric",
]  # fmt: skip
FLAGS = [
    "dirichlet-balance", "bn-local", "presum", "score-last", "score-without-head", "dp.adaptive",
    "dp.secret-noise", "keep-best", "secure-sum",
]  # fmt: skip
COUNTS = {
    "shards-per-client": 1, "num-clients": 0, "min-samples": 2, "head-layers": 1, "num-rounds": 1,
    "local-epochs": 1, "batch-size": 1, "seed": 0, "evaluate-every": 0, "evaluate-clients": 0,
    "finetune-epochs": 0, "threads": 1, "cache-limit": 0, "max-failures": -1, "min-available": 1,
    "clip-history": 1, "channel-nodes": 0, "num-classes": 1, "max-samples": 1,
    "checkpoint-every": 0, "patience": 0, "adapter-rank": 0, "few-shot": 0, "window": 0,
    "window-step": 0, "text-length": 0, "buffer": 0, "metrics-port": 0,
}  # fmt: skip
POSITIVE = [
    "alpha", "lr", "max-value", "round-timeout", "join-timeout", "step-timeout", "dp.clip-norm",
    "adapter-alpha", "server-tau", "attack-scale",
]  # fmt: skip
NOT_NEGATIVE = [
    "weight-decay", "prox-mu", "finetune-lr", "max-norm", "dp.count-noise", "server-lr",
    "clip-radius", "attack-z", "deadline", "over-selection", "dp.budget",
]  # fmt: skip
BELOW_ONE = ["momentum", "server-beta1", "server-beta2", "attackers", "dropout"]
FLOATS = {  # what is allowed, values that are not, values at the edge that are
    **dict.fromkeys(POSITIVE, ("float > 0", [0, 0.0, -1, -0.5, INF, NAN], [1e-300, 1e300, 1])),
    "test-fraction": ("float > 0 and < 1", [0, 1, 1.0, -0.1, 1.5, NAN], [1e-9, 0.999]),
    "dp.noise-multiplier": ("float >= 0 and <= 1000", [-0.1, 1000.1, NAN], [0, 0.5, 1000]),
    "dp.delta": ("float > 0 and < 1", [0, 1, 1.0, -0.1, 1.5, NAN], [1e-9, 0.999]),
    "fraction-train": ("float > 0 and <= 1", [0, 0.0, 1.1, 2, -1, NAN], [1e-9, 1, 1.0]),
    "dp.clip-lr": ("float > 0 and <= 1", [0, 0.0, 1.1, 2, -1, NAN], [1e-9, 1, 1.0]),
    "clip-percentile": ("float >= 0 and <= 100", [-0.1, 100.1, NAN], [0, 100, 99.9]),
    "server-data": ("float >= 0 and <= 1", [1.1, -0.1, NAN], [0, 0.5, 1]),
    "dp.target-quantile": ("float >= 0 and <= 1", [1.1, -0.1, NAN], [0, 0.5, 1]),
    "validation-fraction": ("float >= 0 and < 1", [1, 1.0, -0.1, NAN], [0, 0.0, 0.999]),
    "robust-share": ("float >= 0 and < 0.5", [0.5, -0.1, NAN], [0, 0.499]),
    **dict.fromkeys(BELOW_ONE, ("float >= 0 and < 1", [1, 1.0, -0.1, NAN, INF], [0, 0.0, 0.999])),
    **dict.fromkeys(NOT_NEGATIVE, ("float >= 0", [-1e-9, -1, INF, NAN], [0, 0.0, 3])),
}


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


def allowed(key):
    """What an error says is allowed for a key, values that are not, values that are."""
    if key in WORDS:
        words = WORDS[key].split(", ")
        return "one of " + ", ".join(sorted(words)), ["", words[0].title(), 1, True], words
    if key in TEXTS:
        return "text", [3, 0.5, True], []
    if key == "group":
        return "int >= 0 or auto", [-1, 1.0, True, "Auto", "", NAN], [0, 1, 10**6, "auto"]
    if key in FLAGS:
        return "true or false", [0, 1, "true", "", 1.0], [True, False]
    if key in COUNTS:
        least = COUNTS[key]
        bad = [least - 1, -100, float(least), True, *no_text(key), "3", NAN]
        good = [least + (key == "num-clients"), least + 1, 10**6]  # 0 needs natural clients
        if key == "seed":  # torch's generator and Flower's run-config have 64 bits
            return "int >= 0 and < 4294967296", [*bad, 2**32, 2**70], [*good, 2**32 - 1]
        if key == "threads":  # 4096 of them take a machine down
            return "int >= 1 and <= 64", [*bad, 65, 4096], [1, 2, 64]
        if key == "metrics-port":
            return "int >= 0 and < 65536", [*bad, 65536], [0, 1, 65535]
        return f"int >= {least}", bad, good
    text, bad, good = FLOATS[key]
    return text, [*bad, True, "x", "0.1", *no_text(key)], good


def no_text(key):
    """The empty text, where it does not mean unset."""
    return [] if key in project.defaults() else [""]


def shown(value):
    """A value as it stands in a run-config."""
    if isinstance(value, str | bool):
        return f'"{value}"' if isinstance(value, str) else str(value).lower()
    return str(value)


def read(**changes):
    return config.read(config.defaults() | {k.replace("_", "-"): v for k, v in changes.items()})


def field(key):
    return key.replace("-", "_")


def value_of(settings, key):
    """The value of a key, as of `dp.clip-norm` in the general table `dp`."""
    return attrgetter(field(key))(settings)


def test_the_lists_above_hold_every_general_key():
    listed = {"strategy", "group", *WORDS, *TEXTS, *FLAGS, *COUNTS, *FLOATS}
    plain = {key for key in config.defaults() if "." not in key}
    assert plain | set(config.TABLES) == set(Settings.__struct_encode_fields__) - MADE_BY_READ
    fields = {name: cls.__struct_encode_fields__ for name, cls in config.TABLES.items()}
    in_tables = {f"{name}.{key}" for name, keys in fields.items() for key in keys}
    assert listed == plain | in_tables
    assert in_tables <= set(config.defaults())


@pytest.mark.parametrize("key", [*WORDS, *TEXTS, *FLAGS, *COUNTS, *FLOATS])
def test_a_bad_value_is_refused_in_one_line_and_a_good_one_taken(key):
    text, bad, good = allowed(key)
    for value in bad:
        with pytest.raises(RunError) as caught:
            config.read(config.defaults() | {key: value})
        rule = "finite" if value in (INF, NAN) else text
        rule += ", written as 0.1" if value == "0.1" else ""
        rule += f', in quotes: "{shown(value)}"' if rule == "text" else ""
        assert str(caught.value) == f"{key} = {shown(value)}: must be {rule}"
    for value in good:
        others = {}
        if key in ("evaluate-on", "keep-best", "patience"):
            others = {"validation-fraction": 0.2, "evaluate-on": "validation"}
        if (key, value) == ("dp.mode", "distributed"):
            others = {"secure-sum": True}
        found = value_of(config.read(config.defaults() | others | {key: value}), key)
        assert found == value
        if key in FLOATS:
            assert type(found) is float  # an int is accepted for a float and becomes one


@pytest.mark.parametrize("key", ["runs-dir", "data-root"])
def test_a_relative_folder_is_refused(key):
    for bad in ("runs", "./runs", "../runs", ""):
        with pytest.raises(RunError, match=rf'^{key} = "{bad}": must be absolute or start with ~'):
            config.read(config.defaults() | {key: bad})
    for good in ("/runs", "~/runs", "~"):
        assert getattr(config.read(config.defaults() | {key: good}), field(key)) == good


def test_a_missing_key_is_named():
    flat = config.defaults()
    del flat["batch-size"]
    where = r"has no default in pyproject\.toml, add it to \[tool\.flwr\.app\.config\]$"
    with pytest.raises(RunError, match=rf"^batch-size: {where}"):
        config.read(flat)


@pytest.mark.parametrize("name", ["a/b", "/a", "a/", ".", "..", "../a"])
def test_a_run_name_that_is_no_folders_is_refused_with_the_settings(name):
    line = f'run-name = "{name}": must be a name without /, for a folder in runs-dir'
    with pytest.raises(RunError, match=f"^{re.escape(line)}$"):
        read(run_name=name)
    assert read(run_name="a..b").run_name == "a..b"


def test_a_run_name_that_is_too_long_is_named():
    for name in ("x" * 256, "語" * 86):
        line = f'run-name = "{name}": is too long for a folder (255 bytes at most)'
        with pytest.raises(RunError, match=re.escape(line)):
            read(run_name=name)
    assert read(run_name="語" * 85).run_name


def test_an_unknown_method_gets_the_list_and_the_nearest():
    known = ", ".join(registry.names())
    for name, hint in (
        ("fedbabuu", "unknown, did you mean fedbabu?; "),
        ("FedALA", "unknown, did you mean fedala?; "),
        ("Per-FedAvg", "unknown, did you mean perfedavg?; "),
        ("", ""),
    ):
        with pytest.raises(RunError) as caught:
            read(strategy=name)
        assert str(caught.value) == f'strategy = "{name}": {hint}must be one of {known}'


# general key, key of the table -> prox-mu of fedprox, of a method without such a key
PRECEDENCE = [  # 0.0 is the general default, 0.01 that of the table: they may be set, too
    (None, None, 0.01, 0.0), (0.3, None, 0.3, 0.3), (0.0, None, 0.0, 0.0), (0.01, None, 0.01, 0.01),
    (None, 0.5, 0.5, 0.0), (0.3, 0.5, 0.5, 0.3), (0.3, 0.01, 0.01, 0.3), (0.0, 0.0, 0.0, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("general", "table", "with_table", "without"), PRECEDENCE)
def test_what_is_set_wins_then_the_methods_table(general, table, with_table, without):
    changes = {"prox-mu": general, "fedprox.prox-mu": table}
    changes = {key: value for key, value in changes.items() if value is not None}
    assert read(strategy="fedprox", **changes).prox_mu == with_table
    assert read(strategy="fedavg", **changes).prox_mu == without


def test_every_default_of_a_method_gives_way_to_the_general_key():
    """Also to one that is set to the general default."""
    general = {k: v for k, v in project.defaults().items() if not isinstance(v, dict)}
    tables = {k: v for k, v in project.defaults().items() if isinstance(v, dict)}
    assert len(tables) >= 5
    for name, table in tables.items():
        for key, value in table.items():
            assert getattr(read(strategy=name), field(key)) == value != general[key]
            assert getattr(read(strategy=name, **{key: general[key]}), field(key)) == general[key]


def test_unset_keys_are_those_with_a_default_of_their_own():
    """Without one they would be text; set here, a method's default would never be seen."""
    known = config.defaults()
    unset = flatten_dict(project.defaults())
    assert all(known[key] == config.UNSET for key in unset)
    assert "" not in unset.values()
    for key in (key for key in known if key.partition(".")[0] in registry.names()):
        name, _, short = key.partition(".")
        own = registry.settings_class(name).__struct_encode_fields__
        assert short in own or (key in unset and short in unset)


def test_only_what_was_set_twice_is_told():
    flat = config.defaults() | {"strategy": "fedprox"}
    assert config.overridden(flat) == []
    assert config.overridden(flat | {"prox-mu": 0.5}) == []
    assert config.overridden(flat | {"fedprox.prox-mu": 0.5}) == []
    both = flat | {"prox-mu": 0.5, "fedprox.prox-mu": 0.01}
    assert config.overridden(both) == ["fedprox.prox-mu = 0.01 overrides prox-mu = 0.5"]
    assert config.overridden(both | {"prox-mu": 0.01}) == []


def test_a_bad_value_in_a_methods_table_is_refused():
    bad = {"fedprox.prox-mu = -1": "float >= 0", "local.match-compute = 1": "true or false"}
    for pair, rule in (bad | {"fedper.personal-layers = 3": 'text, in quotes: "3"'}).items():
        key, value = pair.split(" = ")
        with pytest.raises(RunError, match=rf"{pair.removeprefix('fedprox.')}: must be {rule}$"):
            read(strategy=key.partition(".")[0], **{key: int(value)})


def test_a_general_table_holds_for_every_method_and_is_no_method():
    flat = config.defaults() | {"dp.mode": "local", "dp.clip-norm": 3}
    for name in registry.names():
        settings = config.read(flat | {"strategy": name})
        assert (settings.dp.mode, settings.dp.clip_norm) == ("local", 3.0)
    assert config.foreign_keys(flat) == []
    assert not set(config.TABLES).intersection(registry.names())
    with pytest.raises(RunError, match=r"^unknown key dp\.mod, did you mean dp\.mode\?"):
        config.parse(["dp.mod='local'"])
    line = r"^dp\.delta: has no default .* add it to \[.*\.config\.dp\]$"
    with pytest.raises(RunError, match=line):
        config.read({key: value for key, value in flat.items() if key != "dp.delta"})


def test_keys_of_other_methods_are_told_and_have_no_effect():
    flat = config.defaults() | {"strategy": "fedper", "fedprox.prox-mu": 0.5}
    assert config.foreign_keys(flat) == ["fedprox.prox-mu = 0.5 has no effect on fedper"]
    assert config.read(flat).prox_mu == 0.0
    assert config.foreign_keys(flat | {"strategy": "fedprox"}) == []
    assert config.foreign_keys(config.defaults()) == []


def changes(*options):
    """What these --run-config options change."""
    known = config.defaults()
    return {key: value for key, value in config.parse(options).items() if value != known[key]}


def test_no_option_is_the_defaults_of_pyproject():
    table = tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    assert config.parse([]) == flatten_dict(table) == config.defaults()


def test_several_options_and_several_pairs():
    options = ['strategy="fedper" lr=0.5', "num-rounds=7 fedper.personal-layers='fc1,fc2'", ""]
    expected = {"strategy": "fedper", "lr": 0.5, "num-rounds": 7}
    assert changes(*options) == expected | {"fedper.personal-layers": "fc1,fc2"}


def test_a_toml_file_is_an_option_too(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('lr = 0.5\nseed = 4\nmodel = "lenet5"\n[fedprox]\nprox-mu = 0.125\n')
    expected = {"lr": 0.5, "seed": 4, "model": "lenet5", "fedprox.prox-mu": 0.125}
    assert changes(str(path)) == expected
    assert changes("seed=5", str(path), "lr=0.75") == expected | {"lr": 0.75}
    path.write_text("lr = ")
    with pytest.raises(RunError, match=rf"^--run-config {path}: "):
        config.parse([str(path)])
    with pytest.raises(RunError, match=r"none\.toml.*No such file"):
        config.parse([str(tmp_path / "none.toml")])


def test_a_text_without_spaces_needs_no_quotes():
    assert changes("strategy=fedper dataset=/data/x.npz sizes=0.4,0.6 lr=0.5") == {
        "strategy": "fedper", "dataset": "/data/x.npz", "sizes": "0.4,0.6", "lr": 0.5
    }  # fmt: skip


@pytest.mark.parametrize("option", ['strategy="fedper', "strategy=[a]", "strategy={}x", "a=b\\"])
def test_a_text_that_could_be_something_else_needs_quotes(option):
    with pytest.raises(RunError) as caught:
        config.parse([option])
    text = str(caught.value)
    assert text.startswith(f"--run-config {option}: ")
    assert "write a text in quotes" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("option", "rest"),
    [
        ("num-rounds 5", "num-rounds 5"), ("num-rounds = 5", "num-rounds = 5"),
        ("lr=0.5 num-rounds: 5", "num-rounds: 5"), ("--lr=0.5 seed", "seed"),
        ("lr= 0.5", "lr= 0.5"), ("config.tml", "config.tml"), ('run-name="a" b"', 'b"'),
    ],
)  # fmt: skip
def test_what_flowers_parser_would_skip_in_silence_is_refused(option, rest):
    with pytest.raises(RunError) as caught:
        config.parse([option])
    why = f"cannot read {rest}; write key=value pairs without spaces around ="
    why += ", and a text with spaces in double quotes"
    assert str(caught.value) == f"--run-config {option}: {why}"


@pytest.mark.parametrize("value", ["2024-01-01", "07:32:00", "2024-01-01 07:32:00"])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_name_that_is_a_date_in_toml_needs_quotes(value, in_file, tmp_path):
    option = f"run-name={value.replace(' ', 'T')}"
    if in_file:
        option = str(tmp_path / "c.toml")
        (tmp_path / "c.toml").write_text(f"run-name = {value}\n")
    with pytest.raises(RunError) as caught:
        config.parse([option])
    what = "run-name is a date or a time; must be a number, true, false or a text"
    told = f"""{what}: write it in quotes, such as 'run-name="{value}"'"""
    assert str(caught.value) == f"--run-config {option}: {told}"


def test_a_key_that_is_there_twice_is_named():
    option = 'lr=0.1 model="a=1 a=2" lr=0.2'
    with pytest.raises(RunError) as caught:
        config.parse([option])
    why = "lr is set 2 times; set it once; in a later -c, the new value wins"
    assert str(caught.value) == f"--run-config {option}: {why}"


def test_an_unknown_key_gets_the_nearest():
    for key, told in (
        ("num-round", r", did you mean num-rounds\?"),
        ("fedprox.mu", r", did you mean fedprox\.prox-mu"),
        ("zzzzzz", "; `fedapps keys` lists all keys$"),
        ("Num-Rounds", r", did you mean num-rounds\?"),
        ("method", r", did you mean strategy\?"),
        ("algo", r", did you mean strategy\?"),  # as other libraries call them
        ("gr", r", did you mean num-rounds\?"),
        ("jr", r", did you mean fraction-train\?"),
        ("join_ratio", r", did you mean fraction-train\?"),
        ("nc", r", did you mean num-clients\?"),
        ("learning-rate", r", did you mean lr\?"),
    ):
        with pytest.raises(RunError, match=f"^unknown key {key}{told}"):
            config.parse([f"{key}=3"])


@pytest.mark.parametrize(("general", "table", "with_table", "without"), PRECEDENCE)
def test_a_run_is_repeated_by_its_file(general, table, with_table, without, tmp_path):
    changes = {"prox-mu": general, "fedprox.prox-mu": table, "strategy": "fedprox"}
    flat = config.defaults() | {k: v for k, v in changes.items() if v is not None}
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(flat), "utf-8")
    again = config.parse([str(path)])
    assert again == flat  # what was unset is unset, so a later option wins as it would have
    assert config.read(again) == config.read(flat)
    told = f"# prox-mu is unset; in this run it was {with_table}"
    assert (told in path.read_text("utf-8").splitlines()) == (general is None)


@given(st.dictionaries(st.sampled_from(["a", "b-c", "t.a", "t.b-c", "u.x"]), SCALARS))
def test_a_file_reads_back_as_it_was(flat):
    found = flatten_dict(tomllib.loads(config.to_toml(flat)))
    assert found == flat
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in flat.items()}


def test_every_key_has_its_row_with_default_and_meaning():
    rows = {row.name: row for row in keys.table()}
    assert len(rows) == len(keys.table())
    assert set(rows) == set(config.defaults())
    known = config.defaults() | flatten_dict(project.defaults())
    for key, row in rows.items():
        assert len(row.meaning) > 10, key
        assert row.kind, key
        assert tomllib.loads(f"x = {row.default}")["x"] == known[key]
    assert rows["test-fraction"][1:3] == ("float > 0 and < 1", "0.25")
    assert rows["prox-mu"].default == "0.0"
    assert rows["fedprox.prox-mu"][1:] == ("float >= 0", "0.01", "overrides prox-mu")
    assert rows["lr-schedule"].kind == "one of constant, cosine, step"


@pytest.mark.parametrize("name", registry.names())
def test_no_default_stands_in_code(name):
    tables = ((cls, set()) for cls in (*config.TABLES.values(), registry.settings_class(name)))
    for cls, free in ((Settings, MADE_BY_READ), *tables):
        optional = {f.name for f in msgspec.structs.fields(cls) if not f.required}
        assert optional == free


def test_settings_cannot_change_and_can_be_a_key():
    settings = read()
    with pytest.raises(AttributeError):
        settings.lr = 3
    assert {settings: 1}[read()] == 1
    assert read(seed=1) != settings


def test_the_rate_of_personalization_is_lr_unless_set():
    assert read(lr=0.5).finetune_rate == 0.5
    assert read(lr=0.5, finetune_lr=0.25).finetune_rate == 0.25
