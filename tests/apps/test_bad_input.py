"""Bad input, end to end: one line that says what is wrong, status 1, and nothing was started."""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedapps import client_app, server_app
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.serial import main
from fedapps.wire import nodes
from fedapps.wire.serial_grid import SerialGrid


@pytest.fixture
def started(monkeypatch):
    """Messages to SuperNodes that were sent."""
    sent = []
    push = SerialGrid.push_messages

    def spy(grid, messages):
        messages = list(messages)
        sent.extend(messages)
        return push(grid, messages)

    monkeypatch.setattr(SerialGrid, "push_messages", spy)
    return sent


@pytest.fixture
def refuse(started, tmp_path, data_root, tiny_npz, capsys):
    """Return refuse(*run_config, arguments=()) -> the line; checks all that is promised of it."""

    def run(*run_config, arguments=()):
        runs = tmp_path / "runs"
        folders = f'runs-dir="{runs}" data-root="{data_root}"'
        base = [tiny_npz, folders, 'num-clients=4 num-rounds=1 device="cpu"']
        options = [word for option in (*base, *run_config) for word in ("--run-config", option)]
        before = tree(runs)
        status = main([*options, *arguments])
        captured = capsys.readouterr()
        assert status == 1
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert lines[0].startswith("error: ")
        assert captured.out == ""
        assert started == []
        assert tree(runs) == before
        return lines[0].removeprefix("error: ")

    return run


def tree(folder):
    """What is there: an error is to leave no half run directory."""
    return folder.exists(), sorted(folder.rglob("*"))


def quoted(path):
    return f'dataset="{path}"'


def test_the_base_of_these_tests_is_good(no_plots, started, tmp_path, tiny_npz, data_root, capsys):
    """So that what follows is refused for what it says."""
    folders = f'runs-dir="{tmp_path}/runs" data-root="{data_root}"'
    options = f"{folders} num-clients=4 num-rounds=1 evaluate-every=0 finetune-epochs=0"
    assert main(["--run-config", tiny_npz, "--run-config", f'{options} device="cpu"']) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert captured.out.splitlines()[-1] == str(folder)
    assert {message.metadata.message_type for message in started} == {
        "query.hello", "train", "evaluate"
    }  # fmt: skip


# Settings ---------------------------------------------------------------------------------------

REFUSED = """
strategy="fedbab" -> strategy = "fedbab": unknown, did you mean fedbabu?; must be one of apfl, ...
alpha=0 -> alpha = 0: must be float > 0...
lr=.1 -> lr = ".1": must be float > 0, written as 0.1
lr=0,05 -> lr = "0,05": must be float > 0, written as 0.05
num-round=3 -> unknown key num-round, did you mean num-rounds?; `fedapps keys` lists all keys
head-layers=4 -> head-layers = 4: the model has 4 layers; leave at least...
num-clients=61 -> num-clients = 61: 61 clients for 120 samples; a client needs at least 2...
partitioner="sizes" sizes="0.5" -> sizes = "0.5": 1 fraction for num-clients = 4;...
min-samples=30 alpha=0.01 dirichlet-balance=false -> \
partitioner = "dirichlet": none of 10,000 draws with alpha = 0.01 gave all 4 clients...
evaluate-on="validation" -> evaluate-on = "validation": needs validation-fraction > 0...
run-name="../x" -> run-name = "../x": must be a name without /...
model="resnet20" -> unknown model 'resnet20': nearest is 'resnet18'; \
...; allowed: cnn, lenet5, lenet5-1, lenet5-3, conv4, ...
model="vgg16" -> model 'vgg16': images of 8x8 pixels are too small, smallest is 32x32
strategy="fedper" fedper.personal-layers="nope" -> ...nope...the model has conv1, conv2, fc1, fc2
strategy="fedseq" fedseq.base="nope" -> fedseq.base = "nope": must be one of ...
strategy="fedap" -> fedap needs a model with BatchNorm, but cnn has none; use one that ...
strategy="fedbn" -> fedbn needs a model with BatchNorm, but cnn has none; use one that ...
strategy="fedfomo" fedfomo.validation-fraction=0.0 -> \
fedfomo needs a validation part: validation-fraction > 0, as 0.2...
strategy="lgfedavg" lgfedavg.global-layers=4 -> \
lgfedavg.global-layers = 4: the model has 4 layers; leave at least one...
strategy="perfedavg" perfedavg.mode="so" -> perfedavg.mode = "so": must be one of fo,...
strategy="fedrod" clip-mode="sample" max-norm=1.0 -> clip-mode = "sample": this strategy cannot ...
strategy="fedfomo" presum=true validation-fraction=0.2 -> \
presum = true: this strategy needs every client's...
strategy="perfedavg" presum=true -> presum = true: this strategy needs every client's...
none.toml -> --run-config none.toml: cannot be read (No such file or directory)...
dataset="cifar" -> dataset = "cifar": unknown, nearest is cifar10; allowed: digits, mnist, ...
dataset="gone.npz" -> \
dataset = "gone.npz": must be absolute or start with ~, for example ~/gone.npz
dataset="~/x.csv" -> ...x.csv: no such file or folder
runs-dir="/proc/x" -> runs-dir = "/proc/x": no folder can be made there (...
runs-dir="TMP/x.toml" run-name="a" -> runs-dir = "TMP/x.toml": no folder can be made there ...
runs-dir="TMP/x.toml/runs" run-name="a" -> runs-dir = "TMP/x.toml/runs": \
no folder can be made there (Not a directory); use one that you may write to
dataset="digits" data-root="TMP/x.toml/data" -> \
cannot write TMP/x.toml/data/digits.npz: Not a directory
dataset="TMP/gone.npz" -> TMP/gone.npz: no such file
dataset="TMP" -> TMP: holds no .png, .jpg, ...
TMP -> --run-config TMP: cannot read TMP; write key=value pairs without spaces \
around =, and a text with spaces in double quotes, or the path of a .toml file
TMP/x.toml -> --run-config TMP/x.toml: is not a text file; must be TOML in UTF-8
device="cuda" -> \
device = "cuda": no GPU is visible here; use "cpu", or give actors one: fedapps run --fed...
"""


NO_TEXT = bytes(range(128, 256))


def fits(line, pattern):
    """Whether a line is this one, where `...` stands for any text."""
    return re.fullmatch(re.escape(pattern).replace(r"\.\.\.", ".*"), line)


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_a_setting_that_cannot_be(refuse, case, tmp_path, monkeypatch):
    """TMP is a folder with a file that is no text."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "x.toml").write_bytes(NO_TEXT)
    option, pattern = case.replace("TMP", str(tmp_path)).split(" -> ")
    assert fits(refuse(option), pattern)
    assert (tmp_path / "x.toml").read_bytes() == NO_TEXT


@pytest.mark.parametrize("number", ["0", "-2"])
def test_a_fleet_of_no_supernodes(refuse, number):
    line = refuse(arguments=["--num-supernodes", number])
    assert line == f"--num-supernodes {number}: must be at least 1"


def test_more_supernodes_wanted_than_there_are(refuse, monkeypatch):
    monkeypatch.setattr(nodes.time, "sleep", lambda seconds: pytest.fail("it waits for ever"))
    line = refuse("min-available=3", arguments=["--num-supernodes", "2"])
    assert line == "min-available = 3: must be at most --num-supernodes 2"


@pytest.mark.parametrize(("changed", "pattern"), [
    (
        {"classes": 1},
        'task = "classification"...: all samples have the same label, so there is nothing to tell'
        " apart; ...int64 [N]",
    ),
    (
        {"train_images": np.zeros((96, 3, 16, 16), np.uint8)},
        "PATH: train_images has shape [96, 3, 16, 16], which looks like [N, C, H, W]; must be "
        "[N, H, W] or [N, H, W, C]: save train_images.transpose(0, 2, 3, 1)",
    ),
    (
        {"test_images": np.zeros((24, 9, 8), np.uint8)},
        "PATH: test_images holds uint8 images of [C, H, W] = ...",
    ),
])  # fmt: skip
def test_data_that_cannot_be(refuse, make_npz, tmp_path, changed, pattern):
    path = make_npz(tmp_path / "x.npz", **changed)
    assert fits(refuse(quoted(path)), pattern.replace("PATH", str(path)))


@pytest.mark.parametrize(("save", "value"), [
    (np.savez, np.nan), (np.savez_compressed, np.nan), (np.savez, np.inf),
])  # fmt: skip
def test_a_value_that_is_not_finite_is_found_before_the_run(refuse, tmp_path, save, value):
    """Also in the last test sample, and in data of any shape."""
    values = np.random.default_rng(0).random((120, 8, 8))
    values[-1, 7, 0] = value
    parts = {"train": slice(0, 96), "test": slice(96, 120)}
    for kinds, cure in (
        (("images", "labels"), "leave this image out, or set its pixels"),
        (("inputs", "targets"), 'if it stands for a missing value, missing="mean" fills it'),
    ):
        made, path = {kinds[0]: values, kinds[1]: np.arange(120) % 3}, tmp_path / f"{kinds[0]}.npz"
        save(
            path,
            **{f"{part}_{key}": made[key][rows] for part, rows in parts.items() for key in made},
        )
        line = refuse(f'{quoted(path)} model="mlp"')
        where = f"{path}: test_{kinds[0]}[23]"
        assert line == f"{where} holds NaN or infinity; must be finite ({cure})"


def test_a_table_whose_rows_are_all_of_one_class(refuse, tmp_path):
    (tmp_path / "one.csv").write_text("age,died\n" + "".join(f"{row},no\n" for row in range(9)))
    assert refuse(quoted(tmp_path / "one.csv") + ' model="mlp"') == (
        'task = "classification" (which auto takes by the targets): all samples have the same'
        " label, so there is nothing to tell apart; those of one are int64 [N] (classes: no)"
    )


@pytest.mark.parametrize("words", [
    'run-name="mine"', 'runs-dir="/dev/null/runs"', f'runs-dir="/{"x" * 300}/runs"',
])  # fmt: skip
def test_a_place_for_no_run_is_told_before_the_data_are_read(words, refuse, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    line = refuse(words, 'dataset="/there/are/none.npz"')
    assert line.startswith(words.replace("=", " = ") + ": ")


def test_a_runs_dir_on_a_read_only_disk_is_no_matter_of_permission(refuse, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert "no folder can be made there (Read-only file system); use " in refuse('run-name="a"')


def test_a_run_that_is_there_already(refuse, tmp_path):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "rounds.csv").write_text("results")
    exists = f'run-name = "mine": {folder} exists; use another name or ""'
    assert refuse('run-name="mine"') == exists  # somebody's folder, but no run
    for name in ("config.toml", ".lock"):
        (folder / name).touch()
    exists += ", or "
    nothing = "delete it, as it has no checkpoint from which a run could go on"
    assert refuse('run-name="mine"') == exists + nothing
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint/round-000001.fedapps").touch()
    assert refuse('run-name="mine"') == f'{exists}go on with that run: resume="{folder}"'
    assert (folder / "rounds.csv").read_text() == "results"


@pytest.mark.parametrize("key", ["runs-dir", "data-root"])
def test_a_relative_folder_is_where_it_was_typed(key, tmp_path, tiny_npz, data_root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = {}

    def stop(grid, context, plots):
        seen.update(context.run_config)
        raise RunError("enough")

    monkeypatch.setattr(server_app, "run", stop)
    assert main(["--run-config", f'{tiny_npz} {key}="here"']) == 1
    assert seen[key] == str(tmp_path / "here")


@pytest.mark.parametrize("key", ["runs-dir", "data-root"])
def test_the_serverapp_wants_full_paths(key, started, flat_config, tiny_npz, tmp_path, monkeypatch):
    """There it would be resolved in the working directory of the SuperLink."""
    monkeypatch.chdir(tmp_path)
    flat = flat_config(tiny_npz, f'{key}="here"')
    context = Context(1, 0, {}, RecordDict(), flat)
    with pytest.raises(RunError) as caught:
        server_app.run(SerialGrid(client_app.app, flat, 1), context)
    line = f'{key} = "here": must be absolute or start with ~, for example ~/here'
    assert str(caught.value) == line
    assert started == []
    assert list(tmp_path.iterdir()) == []


def test_the_serverapp_logs_the_line_and_fails(started, flat_config, tiny_npz, caplog, tmp_path):
    """Flower counts a ServerApp that returns or exits as a success."""
    flat = flat_config(tiny_npz, "head-layers=9")
    context = Context(1, 0, {}, RecordDict(), flat)
    caplog.set_level("ERROR", "flwr")
    with pytest.raises(RunError):
        server_app.main(SerialGrid(client_app.app, flat, 1), context)
    assert [record.getMessage() for record in caplog.records] == [
        "error: head-layers = 9: the model has 4 layers; leave at least one for the body"
    ]
    assert started == []
    assert not (tmp_path / "runs").exists()


def test_keys_of_other_methods_are_warned_of(serial_run, tiny_npz, capsys):
    serial_run(tiny_npz, 'strategy="fedavg" num-rounds=1 fedprox.prox-mu=0.5')
    lines = capsys.readouterr().out.splitlines()
    warning = "warning: fedprox.prox-mu = 0.5 has no effect on fedavg"
    assert [line for line in lines if line.startswith("warning")] == [warning]


def test_more_threads_than_the_cores_it_may_use_are_warned_of(
    serial_run, tiny_npz, capsys, monkeypatch
):
    """As in a container or a batch job, which may use fewer than the machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    serial_run(tiny_npz, 'threads=2 num-rounds=1 model="mlp"')
    assert "warning: threads = 2 on 1 cores is slow" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("place", ["strategies.py", "clients.py", "strategies/__init__.py"])
def test_packages_of_two_places_are_refused(monkeypatch, tmp_path, place):
    """Such as a user's own module beside a script. Its code is not run."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("raise KeyError")
    name, base = Path(place).parts[0].removesuffix(".py"), Path(place).parts[0]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name)
    registry.names.cache_clear()
    mine = Path(config.__file__).parents[2]
    cure = f"remove one of them, or rename {base}"
    text = f"fedapps comes from {mine} but {name} from {tmp_path}: {cure}"
    with pytest.raises(RunError) as caught:
        config.read(config.parse(['strategy="fedavg"']))
    assert str(caught.value) == text
    with pytest.raises(RunError) as caught:
        server_app.run(None, SimpleNamespace(run_config={}))
    assert str(caught.value) == text
