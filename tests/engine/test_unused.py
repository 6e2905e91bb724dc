"""Keys and data that have no effect, or a wrong one, are told: and what is told is true."""

import numpy as np
import pandas as pd
import pytest

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.schema import literal
from fedapps.data import load, notes
from fedapps.engine import unused
from fedapps.training.workspace import Workspace
from tests.support.marks import THOROUGH, extra
from tests.support.methods import UNLIKE, needed

RUN = "num-clients=3 num-rounds=2 fraction-train=0.5 local-epochs=2 evaluate-every=2"
OTHER = {  # values that are not the defaults
    "finetune-epochs": 3, "finetune-lr": 0.05, "finetune-part": "head", "fraction-train": 1.0,
    "local-epochs": 3, "perfedavg.delta": 0.5, "apfl.alpha-steps": "batch",
    "fedcmd.selection-fraction": 0.9, "fedcmd.candidates": "fc", "fedcmd.label-encoding": "index",
    "fedcmd.scaling": "none",
    "fedcmd.weighting": "uniform", "alpha": 0.3, "dirichlet-balance": False,
    "sizes": "0.5,0.2,0.2,0.1", "clip-history": 3, "clip-mode": "sample", "bn-local": True,
    "bn-stats": "local",
    "fedfc.oversample-limit": 1, "sflv1.oversample-limit": 1, "sflv2.oversample-limit": 1,
    "presum": True, "server-lr": 0.5, "server-beta1": 0.5, "server-beta2": 0.5, "server-tau": 0.5,
    "robust-share": 0.1, "clip-radius": 0.5, "attack-scale": 2.0, "attack-z": 2.0, "attack": "none",
    "fedfc.slowest-limit": 1, "fedamp.own-weight": 0.7, "server-part": "body",
    "dp.sampling": "fixed",
    "fedfc.statistics": "client", "target-column": "a", "client-column": "b", "columns": "a,b",
    "missing": "mean", "window-step": 3, "text-length": 9, "channel-nodes": 3, "join-timeout": 5.0,
    "step-timeout": 5.0, "max-samples": 5, "prox-mu": 0.5,
}  # fmt: skip
QUIET = "dp.noise-multiplier=0.01 dp.clip-norm=0.1"  # noise with which training goes on
INFLATED = 'attack="inflated-count" attackers=0.34 attack-scale=50.0 fraction-train=1.0'
NORMS, NEWCOMER = 'model="lenet5"', 'num-clients=4 unseen-clients="3"'
OWN = {  # settings of a method with which more of its keys have no effect
    "fedavg": [
        'partitioner="iid" finetune-epochs=0 server-data=0.2',
        f'dp.mode="local" {QUIET}',
        f"{NORMS} bn-local=true",
    ],
    "local": ["local.match-compute=true", NORMS],
    "fedproto": [NORMS],
    "fedbn": [NEWCOMER],
    "fedper": [
        'server-optimizer="momentum" aggregation="median"',
        'server-optimizer="adagrad" aggregation="clipped" attack="sign-flip" attackers=0.34',
    ],
    "perfedavg": ['perfedavg.mode="fo"', "finetune-epochs=0"],
    "perfreezeclip": ['clip-mode="sample" max-norm=0.5 clip-percentile=100'],
    "apfl": ["apfl.adaptive=false", INFLATED],
    "scaffold": [INFLATED],
    "feddyn": [INFLATED],
    "fedas": [INFLATED],
    "fedcmd": ['fedcmd.layer="fc2"'],
    "fedseq": ['fedseq.base="fedrep"'],
}


def told(flat):
    """The keys that would be named if each had another value."""
    settings = config.read(flat)
    strategy = registry.strategy_class(settings.strategy)(Workspace(settings))
    return {key for key, _ in unused.told(strategy)}


CASES = [
    *((pytest.param if name in UNLIKE else THOROUGH)(name, "") for name in registry.names()),
    *((name, extra) for name, options in OWN.items() for extra in options),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "extra"), CASES)
def test_without_effect_is_so(method, extra, flat_config, serial_run, untimed_rounds):
    """Every such key with another value, all at once: the same bytes."""
    options = [RUN, f'strategy="{method}" {needed(method)}', extra]
    keys = told(flat_config(*options)) & set(OTHER)
    if not keys:
        return
    changed = " ".join(f"{key}={literal(OTHER[key])}" for key in sorted(keys))
    one, two = serial_run(*options), serial_run(*options, changed)
    assert untimed_rounds(one) == untimed_rounds(two), changed
    newcomers = ["unseen.csv"] if "unseen" in extra else []
    for file in ("model.safetensors", "clients.csv", *newcomers):
        assert (one / file).read_bytes() == (two / file).read_bytes(), changed


CONNECTION = "channel-nodes=3 join-timeout=5.0 step-timeout=5.0"
ANYWAY = "evaluate-rounds = {} has no effect because these rounds are evaluated anyway"
ALL = "over-selection = 0.5 has no effect with fraction-train = 1, which asks all clients"
STAY = "whose BatchNorms never travel"
WRITES = 'columns="text" text-length=2 task="tokens" model="transformer-tiny"'
ON = 'with task = "tokens" and text-length: the target is the next token'
PATIENT = "patience=1 evaluate-on=validation validation-fraction=0.2"


@pytest.mark.parametrize(("options", "lines"), [
    ("", []),
    ("alpha=0.5", []),
    (
        'partitioner="iid" alpha=0.3 shards-per-client=3',
        [
            'alpha = 0.3 has no effect with partitioner = "iid"',
            'shards-per-client = 3 has no effect with partitioner = "iid"',
        ],
    ),
    ('strategy="ditto" finetune-epochs=2', ["finetune-epochs = 2 has no effect on ditto"]),
    (
        'strategy="fedseq" fedseq.base="fedrep" local-epochs=3 finetune-epochs=2',
        ["local-epochs = 3 has no effect on fedseq"],
    ),
    (
        "finetune-epochs=0 finetune-lr=0.5",
        ["finetune-lr = 0.5 has no effect with finetune-epochs = 0"],
    ),
    (
        'dp.mode="local" dp.sampling="fixed"',
        [
            'dp.sampling = "fixed" has no effect with dp.mode = "local", where the method '
            "selects the clients"
        ],
    ),
    ('dp.mode="central" dp.sampling="fixed"', []),
    (
        f"{CONNECTION} max-samples=5",
        [
            'max-samples = 5 has no effect without dataset = "device"',
            *(f"{key} has no effect on fedbabu, whose clients need no channel"
              for key in ("channel-nodes = 3", "join-timeout = 5.0", "step-timeout = 5.0")),
        ],
    ),
    (f'strategy="sflv1" {CONNECTION}', []),
    (f"{PATIENT} evaluate-every=0", ["patience = 1 has no effect with evaluate-every = 0"]),
    (PATIENT, []),
    *(
        (f'{INFLATED} {options}', [f"{key} has no effect {why}, where sample counts are no weights"
                                   for key in told])
        for told in [('attack = "inflated-count"', "attack-scale = 50.0")]
        for options, why in (
            ('strategy="scaffold"', "on scaffold"),
            ('aggregation="median"', 'with aggregation = "median"'),
            ('dp.mode="central"', 'with dp.mode = "central"'),
            (f'dp.mode="local" {QUIET}', 'with dp.mode = "local"'),
        )
    ),
    (INFLATED, []),
    *((f'evaluate-rounds="{rounds}" num-rounds=4 evaluate-every={every}', lines)
      for rounds, every, lines in (
        ("1-3", 2, []), ("2,4", 2, [ANYWAY.format('"2,4"')]), ("4", 0, [ANYWAY.format('"4"')]),
      )),
    *((f'devices="lognormal" over-selection=0.5 fraction-train={share}', lines)
      for share, lines in ((0.75, []), (1.0, [ALL]))),
    *((f'strategy="fedamp" fedamp.own-weight=0.7 fedamp.similarity="{way}"', lines)
      for way, lines in (
        ("cosine", []), ("distance", ["fedamp.own-weight = 0.7 has no effect on fedamp"]),
      )),
    *((f'strategy="{method}" model="lenet5" bn-local=true', lines) for method, lines in (
        ("fedavg", []), *((name, [f"bn-local = true has no effect on {name}"])
                          for name in ("fedbn", "fedproto", "local")),
    )),
    *((f'strategy="{method}" {NORMS} bn-stats="{value}"', lines) for method, value, lines in (
        ("fedavg", "local", []), *((name, "batch", []) for name in ("fedbn", "fedproto", "local")),
        *((name, "local", [f'bn-stats = "local" has no effect on {name}, {STAY}'])
          for name in ("fedbn", "fedproto", "local")),
    )),
    *((f'{NORMS} bn-local=true bn-stats="{value}"', lines) for value, lines in (
        ("batch", []), ("local", ['bn-stats = "local" has no effect with bn-local = true']),
    )),
    ('dataset="device" input-shape="1,8,8" num-classes=10 test-fraction=0.3', []),
    *((f'dataset="device" columns="x,y" client-column="who" {more}', lines) for more, lines in (
        ('input-shape="2" model="mlp"',
         ['client-column = "who" has no effect with dataset = "device" and window = 0']),
        ('input-shape="5,2" model="gru" window=5', []),
      )),
    *((f'dataset="device" {WRITES} input-shape="{shape}"', lines) for shape, lines in (
        ("2", []), ("4", ['input-shape = "4" has no effect with text-length = 2, which says it']),
      )),
    (
        'strategy="centralized" devices="lognormal" deadline=5.0 dropout=0.5',
        [f"{key} has no effect on centralized" for key in ("deadline = 5.0", "dropout = 0.5")],
    ),
    (f'dataset="device" {WRITES}', []),
    (
        f'dataset="device" {WRITES} target-column="y"',
        [f'target-column = "y" has no effect {ON}'],
    ),
    *((f'dataset="device" input-shape="1,8,8" num-classes=10 split="{split}"', lines)
      for split, lines in (
        ("last", []), ("official", ['split = "official" has no effect with dataset = "device"']),
      )),
    *(
        (f'strategy="{method}" attack="{attack}" attackers=0.25', [line] if named else [])
        for method, attack, named in (
            ("fedproto", "label-flip", False), ("splitlearning", "label-flip", False),
            ("feddbe", "sign-flip", False), ("local", "label-flip", True),
            ("splitlearning", "scaled", True),
        )
        for line in [
            f'attack = "{attack}" has no effect on {method}, whose clients upload nothing'
        ]
    ),
])  # fmt: skip
def test_only_what_somebody_set_is_told(options, lines, data_root):
    flat = config.parse([f'data-root="{data_root}" dataset="digits" num-clients=4', options])
    settings = config.read(flat)
    strategy = registry.strategy_class(settings.strategy)(Workspace(settings))
    assert unused.notes(strategy) == lines


TABLE = 'target-column="y" client-column="who" columns="x"'
NAMES = ("target-column", "client-column", "columns")
NO_TABLE, OTHERS = "on data that are no table", 'with dataset = "digits"'


@pytest.mark.parametrize(("made", "options", "lines"), [
    ("digits", TABLE, dict.fromkeys(NAMES, OTHERS)),
    ("digits", 'missing="drop" window=5 window-step=2',
     dict.fromkeys(("missing", "window", "window-step"), OTHERS)),
    ("t.npz", TABLE, dict.fromkeys(NAMES, NO_TABLE)),
    ("t.npz", "text-length=9", {"text-length": NO_TABLE}),
    ("t.npz", 'missing="mean"', {}),
    ("t.npz", 'missing="drop"', {"missing": NO_TABLE}),
    ("t.npz", "window-step=2", {"window-step": "with window = 0"}),
    ("i.npz", 'missing="mean"', {"missing": "on images and tokens"}),
    ("npz", TABLE, dict.fromkeys(NAMES[1:], NO_TABLE)),
    ("saved", 'target-column="y" columns="x"', {}),
    ("t.csv", f'{TABLE} missing="mean"', {}),
    ("t.csv", f'{TABLE} window-step=2', {"window-step": "with window = 0"}),
    ("t.csv", WRITES, {}),
    ("t.csv", f'{WRITES} target-column="y"', {"target-column": ON}),
    ("t.csv", WRITES.replace('task="tokens"', 'target-column="y"'), {}),
])  # fmt: skip
def test_keys_of_tables_are_told_where_there_is_no_table(made, options, lines, data_root, tmp_path):
    x, y, who = np.arange(60.0), np.arange(60) % 2, np.arange(60) % 3
    np.savez(tmp_path / "t.npz", inputs=x[:, None], targets=y)
    np.savez(tmp_path / "i.npz", images=np.ones((60, 8, 8), np.uint8), labels=y)
    table = pd.DataFrame({"x": x, "y": y, "who": who, "text": "Hello"})
    table.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "npz" / "anna").mkdir(parents=True)
    np.savez(tmp_path / "npz" / "anna" / "1.npz", inputs=x[:, None], targets=y)
    if made == "saved":
        rows = extra("datasets").Dataset.from_dict({"x": x.reshape(60, 1), "y": y})
        rows.save_to_disk(tmp_path / made)
    name = made if made == "digits" else tmp_path / made
    common = f'data-root="{data_root}" dataset="{name}" num-clients=2 model="mlp" device="cpu"'
    settings = config.read(config.parse([common, 'partitioner="iid"', options]))
    strategy = registry.strategy_class(settings.strategy)(Workspace(settings))
    flat = dict(settings.flat)
    wanted = [f"{key} = {literal(flat[key])} has no effect {why}" for key, why in lines.items()]
    assert sorted(unused.notes(strategy)) == sorted(wanted)


@pytest.mark.parametrize("folder", [False, True])
def test_arrays_that_nothing_reads_are_told(folder, tmp_path):
    values = {"inputs": np.ones((6, 2)), "targets": np.arange(6) % 2}
    path = tmp_path / "own" / "a.npz"
    path.parent.mkdir()
    name = str(path.parent if folder else path)
    np.savez(path, **values)
    assert not load(name, "").told
    np.savez(path, **values, weights=np.ones(6), group=np.arange(6))
    (line,) = load(name, "").told
    assert line == f"{path}: not read: weights, group, did you mean groups?"
    settings = config.read(config.parse([f'dataset="{path}" partitioner="natural" num-clients=0']))
    with pytest.raises(RunError, match=r"does not say who a sample is from: .*did you mean groups"):
        Workspace(settings)


@pytest.mark.parametrize(("images", "labels", "line"), [
    (np.full((9, 4, 4), 7, np.uint8), [0, 1, 2] * 3, ""),
    (np.linspace(0, 1, 144, dtype=np.float32).reshape(9, 4, 4), [0, 1, 2] * 3, ""),
    (
        np.linspace(0, 255, 144, dtype=np.float32).reshape(9, 4, 4),
        [0, 1, 2] * 3,
        "float pixels from 0 to 255 are used as they are, but models expect 0..1; divide them",
    ),
    (
        np.linspace(0, 65535, 144, dtype=np.float32).reshape(9, 4, 4),
        [0, 1, 2] * 3,
        "; divide them by the largest value that a pixel can have, such as 65535",
    ),
    (
        np.linspace(-2, 2, 144, dtype=np.float32).reshape(9, 4, 4),
        [0, 1, 2] * 3,
        "float pixels from -2 to 2 are used as they are, but models expect 0..1",
    ),
    (
        np.linspace(-1, 1, 144, dtype=np.float32).reshape(9, 4, 4),
        [0, 1, 2] * 3,
        "but models expect 0..1; if they are -1..1, add 1 and divide by 2",
    ),
    (
        np.ones((9, 4, 4), np.uint8),
        [0, 1, 2] * 3,
        "uint8 pixels are 0 and 1, and will be divided by 255; multiply them by 255, or ",
    ),
    (
        np.full((9, 4, 4), 7, np.uint8),
        [0, 1, 4] * 3,
        "only labels 0, 1, 4 of 0..4 occur, so the model has 5 outputs where 3 would do; number "
        'them 0..2, or set task="regression" if they are numbers, such as ages',
    ),
])  # fmt: skip
def test_data_that_are_probably_a_mistake_are_told(images, labels, line, tmp_path):
    path = tmp_path / "own.npz"
    labels = np.array(labels)
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    found = notes(load(str(path), ""), "official")
    assert [line in note for note in found] == [True] * bool(line)


@pytest.mark.parametrize(("days", "before", "told"), [(15, "", 1), (9, "", 0), (15, "day", 0)])
def test_whole_numbers_that_look_like_amounts_are_told(days, before, told, tmp_path):
    """In a table, such as days of stay; not if the classes have names."""
    rows = "".join(f"{row / 7},{before}{row % days}\n" for row in range(60))
    (tmp_path / "t.csv").write_text("age,days\n" + rows)
    found = notes(load(str(tmp_path / "t.csv"), ""), "merged")
    line = (
        f"the target's {days} whole numbers, 0..{days - 1}, are learned as classes; set "
        'task="regression" if they are amounts, such as days'
    )
    assert [line in note for note in found] == [True] * told
    assert notes(load(str(tmp_path / "t.csv"), ""), "merged", task="classification") == []


def test_classes_that_nobody_can_learn_are_told(tmp_path):
    images, path = np.full((6, 4, 4), 7, np.uint8), tmp_path / "own.npz"
    labels = {"train_labels": np.array([0, 1] * 3), "test_labels": np.array([0, 1, 2] * 2)}
    np.savez(path, train_images=images, test_images=images, **labels)
    (found,) = notes(load(str(path), ""), "official")
    assert "labels 2 occur in the test set only" in found
    for part, classes in (("train", "no,yes,no,yes"), ("test", "no,maybe,yes,no")):
        rows = "".join(f"{i},{name}\n" for i, name in enumerate(classes.split(",")))
        (tmp_path / f"{part}.csv").write_text("age,ill\n" + rows)
    assert notes(load(str(path), ""), "merged") == []
    path.unlink()
    (found,) = notes(load(str(tmp_path), ""), "official")
    assert "labels maybe occur in the test set only (first in its row 1)" in found
