"""The command `fedapps`: its help, its table of commands, and what each of them does."""

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from fedapps import cli, models, server_app
from fedapps.core import config, project, registry
from fedapps.launcher import superlink
from fedapps.launcher.inputs import refusal
from fedapps.launcher.superlink import SuperLink
from fedapps.report.report import Report
from tests.support import ROOT
from tests.support.fits import hooked

COMMANDS = [command.name for group in cli.COMMANDS.values() for command in group]
TINY = "num-clients=4 num-rounds=2 device=cpu evaluate-every=0 finetune-epochs=0"


@pytest.fixture
def options(tiny_npz, tmp_path, data_root):
    """The options of a run that takes a moment, with runs in tmp_path/runs."""
    folders = f"runs-dir={tmp_path}/runs data-root={data_root}"
    return ["-c", tiny_npz, "--run-config", f"{TINY} {folders}"]


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_the_overview_has_every_command(words, capsys):
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[2:].split(" ")[0] in COMMANDS] == COMMANDS
    assert max(map(len, lines)) <= 100
    assert "  fedapps serial " in lines[3]  # a newcomer's first step stands first


def test_the_script_and_the_module_are_the_same(capsys):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"fedapps": "fedapps.cli:main"}
    command = [sys.executable, "-m", "fedapps", "--version"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert cli.main(["--version"]) == 0
    assert out == capsys.readouterr().out == f"fedapps {project.version()}\n"


def test_every_model_is_listed_with_its_parameters(capsys):
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    first_words = {line.split()[0] for line in out.splitlines()[1:] if line.split()}
    assert first_words >= {*models.MODELS}
    linear = 3 * 32 * 32 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    assert f"{linear:,}" in out  # of the mlp on images
    assert max(map(len, out.splitlines())) <= 100


def test_a_closed_connection_does_not_end_what_has_some(monkeypatch, capsys):
    ended, name = set(), ""
    monkeypatch.setattr(cli, "perform", lambda command, words: 0)
    monkeypatch.setattr(cli.signal, "signal", lambda number, action: ended.add(name))
    for name in (*COMMANDS, "--help"):
        monkeypatch.setattr(sys, "argv", ["fedapps", name])
        assert cli.main() == 0
    assert ended.isdisjoint({"serial", "run", "supernode", "sweep", "experiments", "stop"})
    assert ended >= {"--help", "methods", "models", "keys", "status"}


def test_help_loads_nothing_that_takes_long():
    """In a process of its own: the help of every command, one after the other."""
    program = """
        import contextlib, io, json, sys
        from fedapps import cli
        shown = {}
        for name in json.loads(sys.argv[1]):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                try:
                    status = cli.main([name, "-h"])
                except SystemExit as end:
                    status = end.code
            shown[name] = [status, out.getvalue()]
        heavy = {"flwr", "matplotlib", "msgspec", "numpy", "pandas", "ray", "rich", "torch"}
        print(json.dumps([shown, sorted(heavy & sys.modules.keys())]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), json.dumps(COMMANDS)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown, heavy = json.loads(done.stdout)
    assert heavy == []
    for name in COMMANDS:
        code, text = shown[name]
        assert code == 0 and text.startswith(f"usage: fedapps {name} "), name
        assert len(text.splitlines()) > 5, name


def test_a_run_in_one_process_loads_nothing_of_a_superlink():
    """In a process of its own: the apps of both sides, and what the server asks of its Grid."""
    program = """
        import sys
        from fedapps import client_app, server_app
        from fedapps.wire.serial_grid import SerialGrid
        assert not server_app.reaches_devices(object.__new__(SerialGrid))
        print(*{"alembic", "flwr.superlink.grid", "sqlalchemy"} & sys.modules.keys())
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_command_that_is_not_there_gets_the_nearest(capsys):
    assert cli.main(["statu"]) == 2
    line = "error: no command statu, did you mean status?; `fedapps -h` lists all commands\n"
    assert capsys.readouterr().err == line


def test_keys_can_be_looked_up_by_a_part_of_their_names(capsys):
    assert cli.main(["keys", "lr"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = {line.split()[0] for line in lines[1:] if line[0] != " "}
    assert named == {key for key in config.defaults() if "lr" in key}
    assert max(map(len, lines)) <= 100
    assert cli.main(["keys", "nun-rounds"]) == 1
    line = "error: no key has nun-rounds in its name, did you mean num-rounds?\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("words", "line"), [
    ("keys fedamp lr --markdown", "--markdown prints all keys; leave out fedamp lr"),
    ("models --shape 1,8,8", "--shape 1,8,8: is for --check; name a model there"),
    ("models --check mine --markdown", "--markdown prints all models; leave out --check"),
])  # fmt: skip
def test_words_that_would_be_dropped_are_refused(words, line, capsys):
    assert cli.main(words.split()) == 1
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_methods_come_in_markdown_too(capsys):
    assert cli.main(["methods", "--markdown"]) == 0
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head == "| method | citation | exchanged | keys |" and rule == "|---|---|---|---|"
    assert [row.split()[1] for row in rows] == list(registry.names())
    assert {row.count("|") for row in rows} == {5}


def test_serial_takes_both_options_and_ends_with_the_run_directory(options, no_plots, capsys):
    assert cli.main(["serial", *options, "-c", "strategy=fedper seed=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(lines[-1])
    settings = tomllib.loads((folder / "config.toml").read_text("utf-8"))
    assert (settings["strategy"], settings["seed"]) == ("fedper", 3)
    said = [line for line in lines if str(folder) in line]
    assert said == [f"run directory: {folder}", str(folder)]


NOTHING = "interrupted in round 1 of 2: {} has no results yet; begin anew"
FIGURES = "interrupted in round 2 of 2: {} has model and figures of 1 round; begin anew"
GOES_ON = "interrupted after round 1 of 2; to resume: fedapps serial --resume {}"


def ctrl_c_after(done, monkeypatch):
    """Let Ctrl-C be pressed when this number of rounds is done."""
    write = Report.round

    def interrupt(report, row):
        if row.round > done:
            raise KeyboardInterrupt
        write(report, row)

    monkeypatch.setattr(Report, "round", interrupt)


@pytest.mark.parametrize("done, every, says", [(0, 1, NOTHING), (1, 0, FIGURES), (1, 1, GOES_ON)])
def test_ctrl_c_says_it_all(options, done, every, says, no_plots, monkeypatch, capsys, read_csv):
    ctrl_c_after(done, monkeypatch)
    assert cli.main(["serial", *options, "-c", f"checkpoint-every={every}"]) == 130
    captured = capsys.readouterr()
    folder = Path(captured.out.splitlines()[0].removeprefix("run directory: "))
    assert captured.err == says.format(folder) + "\n"
    assert "Traceback" not in captured.out
    assert len(read_csv(folder, "rounds.csv")) == done
    monkeypatch.undo()
    if says == GOES_ON:
        monkeypatch.chdir(folder.parent)
        assert cli.main(["serial", "--resume", folder.name]) == 0
        assert len(read_csv(folder, "rounds.csv")) == 2


def no_luck(client, own, plan):
    if client.client == 1:
        raise ValueError("no luck")
    return own(plan)


def test_the_command_that_ctrl_c_tells_goes_on_in_the_same_way(
    options, no_plots, monkeypatch, capsys, read_csv
):
    ctrl_c_after(1, monkeypatch)
    keys = "min-available=2 strategy=fedavg fraction-train=1.0"
    more = ["--num-supernodes", "3", "-c", keys, "--keep-going"]
    assert cli.main(["serial", *options, *more]) == 130
    monkeypatch.undo()
    hooked(monkeypatch, "fedavg", "before_training", no_luck)  # of one client
    program, *words = capsys.readouterr().err.partition("; to resume: ")[2].split()
    assert (program, cli.main(words)) == ("fedapps", 0)
    rows = read_csv(Path(words[2]), "rounds.csv")
    assert [row["failures"] for row in rows] == ["0", "1"]


def test_ctrl_c_tells_that_devices_have_to_be_named_again(
    options, tiny_npz, no_plots, monkeypatch, capsys, read_csv, tmp_path
):
    ctrl_c_after(1, monkeypatch)
    data = re.search(r'dataset=("[^"]*")', tiny_npz)[1]
    device = ["--node-config", f'client-id=0 data={data} state-dir="{tmp_path}/state"']
    keys = "dataset=device num-clients=1 input-shape=1,8,8 num-classes=3"
    assert cli.main(["serial", *options, "-c", keys, *device]) == 130
    monkeypatch.undo()
    told, _, command = capsys.readouterr().err.rpartition(": ")
    assert told.endswith("; to resume with the same --node-config options")
    program, *words = command.split()
    assert (program, cli.main([*words, *device])) == ("fedapps", 0)
    assert len(read_csv(Path(words[2]), "rounds.csv")) == 2


def test_ctrl_c_before_a_run_directory_is_made(options, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(server_app, "run", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["serial", *options]) == 130
    assert capsys.readouterr().err == "interrupted, nothing was written\n"
    assert not (tmp_path / "runs").exists()


def test_a_run_that_cannot_be_is_refused_before_flower_starts(tmp_path, capsys):
    home = tmp_path / "home"
    words = ["run", str(ROOT), "--home", str(home), "-c", "strategy=fedpr"]
    assert cli.main(words) == 1
    (line,) = capsys.readouterr().out.splitlines()
    told = 'error: strategy = "fedpr": unknown, did you mean fedper?; must be one of '
    assert line.startswith(told)
    assert not home.exists()


def test_what_a_run_that_goes_on_may_change_is_seen_beside_its_own_settings(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    own = config.parse(['validation-fraction=0.2 evaluate-on="validation"'])
    (folder / "config.toml").write_text(config.to_toml(own))
    resume = f'resume="{folder}"'
    assert refusal(ROOT, ["patience=5", resume]) == ""
    assert refusal(ROOT, [resume, "patience=5 evaluate-on=test"]).startswith("patience = 5: would ")
    assert refusal(ROOT, ["patience=5"]).startswith("patience = 5: would ")
    assert "is not a run directory" in refusal(ROOT, [f'resume="{tmp_path}"'])


# Flower's SuperLink -------------------------------------------------------------------------------

LISTED = {
    "success": True,
    "runs": [
        {
            "run-id": "12494682236078284043", "status": "finished:failed", "elapsed": 56.8,
            "status-details": "Simulation failed with exception: round 4:\n  " + "long " * 30,
            "pending-at": "2026-11-22 04:01:07Z",
        },
        {
            "run-id": "36916", "status": "running", "elapsed": 3.2, "status-details": "N/A",
            "pending-at": "2026-11-22 03:59:24Z",
        },
    ],
}  # fmt: skip


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A SuperLink whose `flwr` program answers with LISTED, and notes what it was asked."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    program = folder / "flwr"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"keys = ('FLWR_HOME', {superlink.PORT!r}, 'no_proxy')\n"
        f"open({str(tmp_path / 'asked')!r}, 'w').write("
        "json.dumps([sys.argv[1:], [*map(os.environ.get, keys)]]))\n"
        f"print('Using SuperLink: local', json.dumps({LISTED!r}))\n"
    )
    found = SuperLink(4711, 21001, folder)
    monkeypatch.setattr(superlink, "superlink", lambda home: found)
    return found


def test_status_shows_the_superlink_and_its_runs(link, tmp_path, monkeypatch, capsys):
    """Through a proxy, Flower would not reach it, and start another one."""
    monkeypatch.setenv("http_proxy", "http://10.0.0.1:3128")
    monkeypatch.setenv("no_proxy", "site")
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "flwr-1.40.2.dist-info"
    packages.mkdir(parents=True)
    (packages / "METADATA").write_text("Name: flwr\nVersion: 1.40.2\n")
    assert cli.main(["status", "--home", str(tmp_path / "home"), "--limit", "7"]) == 0
    first, failed, why, running = capsys.readouterr().out.splitlines()
    assert first == f"SuperLink of {tmp_path}/home: port 21001, process 4711, Flower 1.40.2"
    assert failed == "run 12494682236078284043  finished:failed  since 2026-11-22 04:01:07Z  57 s"
    assert why.startswith("    round 4: long long") and why.endswith(" ...") and len(why) < 100
    assert running == "run 36916  running  since 2026-11-22 03:59:24Z  3 s"
    words, environment = json.loads((tmp_path / "asked").read_text())
    assert words == ["ls", "--limit", "7", "--format", "json"]
    assert environment == [str(tmp_path / "home"), "21001", "site,127.0.0.1,localhost"]


def test_status_takes_the_python_of_the_superlink(link, tmp_path, monkeypatch, capsys):
    (link.bin_dir / "python").unlink()
    words = ["status", "--home", str(tmp_path)]
    assert cli.main(words) == 1
    assert capsys.readouterr().err.startswith(f"error: {link.bin_dir} has no python for its flwr")
    found = replace(link, python=sys.executable)
    monkeypatch.setattr(superlink, "superlink", lambda home: found)
    assert cli.main(words) == 0


def test_a_name_of_the_superlink_in_the_background_is_that(link, tmp_path, capsys):
    """Flower itself would look for it at its fixed port."""
    (tmp_path / "config.toml").write_text('[superlink.sim]\naddress = ":local:"\n')
    shown = []
    for place in ([], ["sim"]):
        assert cli.main(["status", *place, "--home", str(tmp_path), "--json"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and json.loads(shown[0])["superlink"]["port"] == 21001


def test_status_asks_the_superlink_in_the_background_and_not_the_default(link, tmp_path, capsys):
    """The default can be elsewhere, and `fedapps run --connection` have started the local one."""
    (tmp_path / "config.toml").write_text(
        '[superlink]\ndefault = "site"\n[superlink.site]\naddress = "a:9093"\n'
        '[superlink.first]\naddress = ":local:"\n[superlink.sim]\naddress = ":local:"\n'
    )
    for place, name in ([], "first"), (["sim"], "sim"):
        assert cli.main(["status", *place, "--home", str(tmp_path)]) == 0
        words, _ = json.loads((tmp_path / "asked").read_text())
        assert words == ["ls", name, "--limit", "10", "--format", "json"]
    (tmp_path / "asked").unlink()
    (tmp_path / "config.toml").write_text('[superlink.site]\naddress = "a:9093"\n')
    capsys.readouterr()
    assert cli.main(["status", "--home", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/config.toml: names no local SuperLink, so the runs of process 4711 "
        'cannot be listed; add [superlink.local] with address = ":local:"\n'
    )
    assert not (tmp_path / "asked").exists()


def test_status_and_stop_without_a_superlink(tmp_path, capsys):
    """Asking Flower would start one."""
    assert cli.main(["status", "--home", str(tmp_path)]) == 0
    assert cli.main(["stop", "--home", str(tmp_path)]) == 0
    there = f"no SuperLink that `fedapps run` started in {tmp_path} is running"
    # `fedapps run` may use that one
    hint = "for one that config.toml names, use fedapps status NAME"
    assert capsys.readouterr().out == f"{there}; {hint}\n{there}\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "config.toml").write_text('[superlink.sim]\naddress = ":local:"\n')
    assert cli.main(["status", "sim", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{there}\n"  # no advice to do what was done


def test_on_windows_one_line_says_what_it_needs():
    """It has no module fcntl."""
    code = (
        "import sys; sys.modules['fcntl'] = None; sys.platform = 'win32'\n"
        "from fedapps.cli import main; sys.exit(main(['serial']))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "error: fedapps needs Linux or macOS; on Windows, use WSL\n"


def test_evaluate_scores_a_run_with_other_settings(options, no_plots, capsys, read_csv):
    assert cli.main(["serial", *options]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert cli.main(["evaluate", str(folder), "-c", "finetune-epochs=1 finetune-part=head"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder / "evaluation-1.csv")
    (line,) = read_csv(folder, "evaluations.csv")
    assert line["settings"] == 'finetune-epochs=1 finetune-part="head"'
    assert len(read_csv(folder, "evaluation-1.csv")) == 4
    assert cli.main(["evaluate", str(folder), "-c", "lr=0.5"]) == 1
    assert capsys.readouterr().err.startswith("error: lr = 0.5 (the run has 0.05): needs another ")
    own = "lr=0.05"
    others = "num-rounds=500 checkpoint-every=0"
    assert cli.main(["evaluate", str(folder), "-c", f"{others} {own}"]) == 1
    refused = capsys.readouterr().err
    for key, value in (("checkpoint-every", 1), ("num-rounds", 2)):
        assert re.search(rf"{key} = \d+ \(the run has {value}\)", refused)
    assert "lr = " not in refused
    assert len(read_csv(folder, "evaluations.csv")) == 1
