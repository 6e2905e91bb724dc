"""How `flwr run` is started, understood and ended: `fedapps.launch`."""

import errno
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from flwr.cli import constant
from flwr.common.config import parse_config_args
from flwr.proto.federation_config_pb2 import SimulationConfig

from fedapps import cli, launch
from fedapps.core.errors import RunError
from fedapps.launcher import inputs, outcome, processes, superlink
from fedapps.launcher.flwr import PATIENCE, Flwr
from fedapps.launcher.superlink import SuperLink
from tests.support import ROOT

EMPTY_APP = ROOT / "tests" / "support" / "empty_app"
FEDERATION = "num-supernodes=2 client-resources-num-cpus=1"

# As flwr 1.41 prints them.
FAILED_LOG = """\
Using SuperLink: local (127.0.0.1:21001)
Successfully started run 9621920773214295782
\x1b[92mINFO \x1b[0m:      Starting logstream for run_id `9621920773214295782`
empty-app round=1 nodes=2 since-start=31.66 seconds=27.705
\x1b[91mERROR \x1b[0m:     error: alpha = -1: must be float > 0
\x1b[91mERROR \x1b[0m:     Simulation raised an exception
Traceback (most recent call last):
  File "server_app.py", line 37, in main
    raise RuntimeError(f"round {number} fails as asked")
RuntimeError: round 2 fails as asked
\x1b[91mERROR \x1b[0m:     Exit Code: 700
"""
REFUSED_LOG = """\
Using SuperLink: local (127.0.0.1:23286)
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Failed to load Flower App configuration in '/app/pyproject.toml'.            │
│ File may be missing or invalid.                                              │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
CUT_OFF_LOG = """\
empty-app round=1 nodes=2 since-start=31.66 seconds=27.705
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Connection to the SuperLink is unavailable. Please check your network        │
│ connection and 'address' in the SuperLink connection configuration.          │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
LISTED = """\
{
  "success": true,
  "runs": [
    {
      "run-id": "9621920773214295782",
      "fab-id": "fedapps/empty-app",
      "status": "finished:failed",
      "status-details": "Simulation failed with exception: round 2 fails as asked",
      "elapsed": 34.479054
    }
  ]
}
"""
NOT_LISTED = '{"success": false, "error-message": "[code: 16] Run ID not found."}'
TRACE = "Simulation failed with exception: "


def result(status: str, details: str, log: str = "") -> outcome.LaunchResult:
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in log.splitlines()]
    return outcome.LaunchResult(1, status, lines, details)


UNTOLD = f"{TRACE}An error was encountered. Ending simulation."
ONE_CORE_LOG = """\
\x1b[93mWARNING \x1b[0m:   The ActorPool is empty. The system (CPUs=1.0, GPUs=0) does not meet the \
criteria to host at least one client with resources: {'num_cpus': 2, 'num_gpus': 0.25}. Lowering \
the `client_resources` could help.
ValueError: ActorPool is empty. Stopping Simulation.
RuntimeError: An error was encountered. Ending simulation.
"""
LONG = "AF_UNIX path length cannot exceed 107 bytes: '/a/plasma_store'"
SHORTER = "fedapps stop, and set RAY_TMPDIR to a shorter folder, such as /tmp"
LESS = "--federation-config 'client-resources-num-cpus=1 client-resources-num-gpus=0.0'"


@pytest.mark.parametrize(("status", "details", "log", "error"), [
    ("completed", "N/A", FAILED_LOG, ""),
    ("failed", f"{TRACE}round 2 fails", FAILED_LOG, "alpha = -1: must be float > 0"),  # the app's
    ("failed", f"{TRACE}a\n  b", "", "a b"),  # without Flower's preface
    ("failed", UNTOLD, FAILED_LOG.replace("error: alpha", "alpha"), ".*round 2 fails as asked"),
    ("failed", UNTOLD, ONE_CORE_LOG, "each SuperNode needs 2 CPUs and 0.25 GPUs, and Ray has 1 and "
                                     f"0 here; let each have less: {LESS}"),
    ("failed", "No heartbeat received from the task", "",
     "the run's process gave no sign of life .*; resume it: fedapps run --resume RUN, or .*"),
    ("failed", "Task failed with unknown error.", CUT_OFF_LOG,  # the SuperLink was started again
     "the run's process gave no sign of life .*; resume it: fedapps run --resume RUN, or .*"),
    ("failed", f"{TRACE}{LONG}", "", f"{LONG}; {SHORTER}"),
    ("failed", UNTOLD, f"OSError: {LONG}\nRuntimeError: An error", f"{LONG}; {SHORTER}"),
    ("stopped", "N/A", "", "the run is finished:stopped"),
])  # fmt: skip
def test_the_error_of_a_finished_run(status, details, log, error):
    assert re.fullmatch(error, result(f"finished:{status}", details, log).error)


def test_the_error_of_what_has_not_started_is_the_text_of_flwrs_box():
    error = result("not started", "", REFUSED_LOG).error
    assert error.startswith("Failed to load") and error.endswith("missing or invalid.")


def passed_on(given):
    """What Flower reads of run-config options."""
    with inputs.merged(given) as options:
        values = parse_config_args(options)
    assert not any(Path(option).exists() for option in options)
    return values


class TestParse:
    def test_what_is_printed_around_the_answer_does_not_matter(self):
        output = f"a note\n{LISTED}another {{note}}\n"
        assert outcome.answer_of(output) == outcome.answer_of(LISTED)

    @pytest.mark.parametrize(
        ("output", "says"),
        [
            (NOT_LISTED, "Run ID not found"), ("", "no answer"), ("boo", "boo"),
            ('{"success": tr', "success"),
            ('{"success": true, "runs": []}', "unexpected answer"),
            ('{"success": true, "runs": [5]}', "unexpected answer"),
        ],
    )  # fmt: skip
    def test_no_status(self, output, says):
        with pytest.raises(RunError, match=says):
            outcome.status_of(outcome.answer_of(output))

    @pytest.mark.parametrize("given", [[], ["", "  "]])
    def test_without_settings_there_is_no_option(self, given):
        with inputs.merged(given) as options:
            assert options == []

    def test_texts_need_no_quotes(self):
        values = {"a": "b", "c": 1, "d": "e f", "g": True, "h": "1,2"}
        assert passed_on(["a=b c=1 d='e f' g=true h=1,2"]) == values

    def test_later_option_wins_key_by_key(self, tmp_path):
        file = tmp_path / "x.toml"
        file.write_text('lr = 0.1\nname = "it\'s \\"é🌻\\""\n[fedper]\na = 1\nb = false\n', "utf-8")
        values = passed_on([str(file), "fedper.a=2 lr=1e-3", "fedper.c=inf"])
        assert values == {
            "lr": 0.001, "name": "it's \"é🌻\"", "fedper.a": 2, "fedper.b": False,
            "fedper.c": float("inf"),
        }  # fmt: skip

    def test_a_file_goes_on_with_a_run_and_its_settings_as_pairs_do(self, tmp_path):
        (tmp_path / "config.toml").write_text("lr = 0.5\nnum-rounds = 2\n[fedper]\na = 3\n")
        file = tmp_path / "my.toml"
        file.write_text(f'resume = "{tmp_path}"\nnum-rounds = 9\n')
        pairs = f'resume="{tmp_path}" num-rounds=9'
        expected = {"resume": str(tmp_path), "lr": 0.5, "num-rounds": 9, "fedper.a": 3}
        assert passed_on([str(file)]) == passed_on([pairs]) == expected

    @pytest.mark.parametrize("option", ['lr="abc', "missing.toml"])
    def test_bad_option_is_named(self, option):
        with pytest.raises(RunError, match=f"--run-config {option}"):
            inputs.refusal(EMPTY_APP, [option])

    def test_unknown_key_is_named_with_its_neighbour(self):
        assert inputs.refusal(EMPTY_APP, ["sleep=1.0", "num-round=3"]) == (
            "unknown key num-round, did you mean num-rounds?"
        )
        assert inputs.refusal(EMPTY_APP, ["sleep=1.0"]) == ""
        assert inputs.refusal(EMPTY_APP / "nowhere", ["a=1"]) == ""

    @pytest.mark.parametrize(("option", "line"), [
        ("strategy=fedpr", 'strategy = "fedpr": unknown, did you mean fedper?; must be one of '),
        ("num-rounds=0", "num-rounds = 0: must be int >= 1"),
        ("runs-dir=here", 'runs-dir = "here": must be absolute or start with ~'),
        ("strategy=fedper lr=0.1", ""),
    ])  # fmt: skip
    def test_a_value_of_this_app_is_refused_before_an_engine_starts(self, option, line):
        said = inputs.refusal(ROOT, ["num-rounds=3", option])
        assert said.startswith(line) and bool(said) == bool(line)

    def test_the_loggers_of_a_run_decide_which_variables_count(self, tmp_path, monkeypatch):
        def loggers(*options, app=ROOT):
            with pytest.raises(RunError) as told:
                launch.launch(app, options)
            return str(told.value)

        def environment(home, port, own, loggers):
            raise RunError(loggers)

        monkeypatch.setattr(launch, "environment", environment)
        (tmp_path / "config.toml").write_text('strategy = "fedper"\nloggers = "wandb"\n')
        again = f"resume={tmp_path}"
        assert [loggers(), loggers("loggers=mlflow,wandb")] == ["", "mlflow,wandb"]
        assert [loggers(again), loggers(again, "loggers=mlflow")] == ["wandb", "mlflow"]
        assert loggers(app=EMPTY_APP) == "mlflow,wandb"  # it has no such key, so any may be used

    @pytest.mark.parametrize(("given", "line"), [
        ("num-supernode=4", "unknown key num-supernode, did you mean num-supernodes?"),
        ("num-supernodes=0", "num-supernodes = 0: must be int >= 1"),
        ("verbose=true num_supernodes=two", "num_supernodes = two: must be int >= 1"),
        ("client-resources-num-cpus=0.5", "client-resources-num-cpus = 0.5: must be int >= 1"),
        ("init-args-num-cpus=true", "init-args-num-cpus = True: must be int >= 1"),
    ])  # fmt: skip
    def test_a_simulation_that_cannot_be_is_refused(self, given, line):
        with pytest.raises(RunError) as refused:
            inputs.simulation(given)
        assert str(refused.value) == f"--federation-config: {line}"

    def test_flower_knows_the_settings_of_a_simulation(self):
        fields = {f.name.replace("_", "-"): f for f in SimulationConfig.DESCRIPTOR.fields}
        assert fields.keys() == inputs.SIMULATION.keys()
        whole = {name for name, field in fields.items() if field.type == field.TYPE_UINT32}
        assert whole == {name for name, least in inputs.SIMULATION.items() if least is not None}
        given = "num-supernodes=4 client-resources-num-gpus=0.25 backend=ray"
        assert inputs.simulation(given) == given.replace("ray", '"ray"')


SITE = """
[superlink]
default = "{}"

[superlink.site]
address = "127.0.0.1:8000"

[superlink.sim]
address = "{}"

[superlink.options]
options.num-supernodes = 4
"""


class TestHome:
    @pytest.mark.parametrize(("config", "own"), [
        (None, {"": True, "local": True}),  # Flower makes the file
        (SITE.format("site", ":local:"),
         {"": False, "site": False, "sim": True, "options": True}),
        (SITE.format("sim", ":local-in-memory:"),
         {"": True, "site": False, "sim": True, "options": True}),
        (SITE.format("gone", "127.0.0.1:8001"),
         {"": False, "site": False, "sim": False, "options": True}),
    ])  # fmt: skip
    def test_an_address_says_whether_flower_starts_the_superlink(self, tmp_path, config, own):
        if config:
            (tmp_path / "config.toml").write_text(config)
        assert superlink.connections(tmp_path) == own

    @pytest.mark.parametrize("config", ['superlink = "x"', "[[superlink]]"])
    def test_a_superlink_that_is_no_table_is_refused(self, tmp_path, config):
        (tmp_path / "config.toml").write_text(config)
        told = rf"^{tmp_path}/config.toml: cannot be read \(superlink is no table\)$"
        with pytest.raises(RunError, match=told):
            superlink.connections(tmp_path)

    def test_environment(self, tmp_path, monkeypatch):
        monkeypatch.delenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", raising=False)
        env = superlink.environment(tmp_path / "home", None)
        assert env["FLWR_HOME"] == str(tmp_path / "home")
        assert env["PATH"].startswith(str(Path(sys.executable).parent) + os.pathsep)
        assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert 20000 <= int(env[superlink.PORT]) < 32768

    @pytest.fixture
    def no_ray(self, monkeypatch):
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
            monkeypatch.delenv(name, raising=False)

    def test_ray_gets_a_token_that_nobody_else_has(self, no_ray, tmp_path):
        envs = [superlink.environment(tmp_path, None) for _ in range(2)]
        assert [env["RAY_AUTH_MODE"] for env in envs] == ["token"] * 2
        assert len({env["RAY_AUTH_TOKEN"] for env in envs}) == 2
        assert all(len(bytes.fromhex(env["RAY_AUTH_TOKEN"])) == 32 for env in envs)

    @pytest.mark.parametrize("name", ["RAY_AUTH_MODE", "RAY_ADDRESS"])
    def test_a_ray_that_the_user_has_set_up_stays(self, name, no_ray, tmp_path, monkeypatch):
        monkeypatch.setenv(name, "mine")
        env = superlink.environment(tmp_path, None)
        assert {key: env[key] for key in env if key.startswith("RAY_A")} == {name: "mine"}

    @pytest.mark.parametrize(("given", "expected"), [
        ({}, ["127.0.0.1,localhost"] * 2),
        ({"NO_PROXY": "site"}, ["site,127.0.0.1,localhost"] * 2),
        ({"NO_PROXY": "a", "no_proxy": "b"}, ["a,127.0.0.1,localhost", "b,127.0.0.1,localhost"]),
        ({"no_proxy": "*"}, ["*", "*"]),
    ])  # fmt: skip
    def test_this_machine_is_not_asked_through_a_proxy(self, given, expected, monkeypatch):
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name, hosts in {"http_proxy": "http://10.0.0.1:3128", **given}.items():
            monkeypatch.setenv(name, hosts)
        env = superlink.environment(None, own=False)
        assert [env["NO_PROXY"], env["no_proxy"]] == expected
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, env[name])
        assert urllib.request.proxy_bypass_environment("127.0.0.1:39093")

    def test_without_a_proxy_in_the_environment_the_systems_own_counts(self, monkeypatch):
        """As on macOS, whose settings urllib reads unless a *_proxy variable is set."""
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        env = superlink.environment(None, own=False)
        assert not [name for name in env if name.lower().endswith("_proxy")]

    def test_without_a_home_the_port_must_not_be_another_user_s(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FLWR_HOME", str(tmp_path))
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            monkeypatch.setenv(superlink.PORT, str(port))
            told = f"port {port} is in use, and not by a SuperLink of {tmp_path}; use --home or"
            with pytest.raises(RunError, match=told):
                superlink.environment(None)
            with pytest.raises(RunError, match=told):
                superlink.environment(None, port)
            superlink.environment(None, own=False)
            superlink.environment(tmp_path)
            link = SuperLink(0, port, superlink.bin_dir())
            monkeypatch.setattr(superlink, "superlink", lambda home: link)
            assert superlink.environment(None)[superlink.PORT] == str(port)

    def test_without_a_home_flower_s_own_choice_holds(self, tmp_path, monkeypatch):
        monkeypatch.setattr(superlink, "_free", lambda port: True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("FLWR_HOME", "somewhere")
        monkeypatch.delenv(superlink.PORT, raising=False)
        env = superlink.environment(None, None)
        flower = runpy.run_path(constant.__file__)["LOCAL_SUPERLINK_HTTP_API_PORT"]
        assert (env["FLWR_HOME"], env[superlink.PORT]) == (str(tmp_path / "somewhere"), flower)
        assert superlink.flower_home(None) == tmp_path / "somewhere"

    def test_port_is_the_same_each_time_and_another_for_another_home(self, tmp_path):
        first, again, other = (superlink.choose_port(tmp_path / name) for name in "aab")
        assert first == again != other

    def test_taken_port_is_passed_over_or_refused(self, tmp_path):
        first = superlink.choose_port(tmp_path)
        with socket.socket() as other:
            other.bind(("127.0.0.1", first))
            other.listen()
            assert superlink.choose_port(tmp_path) > first
            with pytest.raises(RunError, match=f"port {first} is in use"):
                superlink.choose_port(tmp_path, first)

    def test_a_port_that_this_user_may_not_open_is_refused(self, tmp_path, monkeypatch):
        def bind(probe, address):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(socket, "socket", type("Probe", (socket.socket,), {"bind": bind}))
        with pytest.raises(RunError, match=r"^port 80: this user may not open it; "):
            superlink.choose_port(tmp_path, 80)

    @pytest.mark.parametrize("text", ["abc", "0", "-1", "65536", "1e3", "²"])
    def test_a_port_that_cannot_be_is_refused(self, text, tmp_path, monkeypatch):
        monkeypatch.setenv("FLWR_HOME", str(tmp_path))
        rule = f"{text}: must be a whole number from 1 to 65535$"
        monkeypatch.setenv(superlink.PORT, text)
        with pytest.raises(RunError, match=f"^{superlink.PORT}={rule}"):
            superlink.choose_port(None)
        assert superlink.choose_port(tmp_path)  # it does not count with --home
        if re.fullmatch("-?[0-9]+", text):  # the parser refuses others
            for home in (None, tmp_path):
                with pytest.raises(RunError, match=f"^--port {rule}"):
                    superlink.choose_port(home, int(text))

    @pytest.mark.parametrize("is_default", [False, True])
    def test_a_superlink_keeps_its_port(self, is_default, tmp_path, monkeypatch):
        """On another port, Flower would start a second one with the same database."""
        home = None if is_default else tmp_path
        monkeypatch.setenv("FLWR_HOME", str(tmp_path) if is_default else "/somewhere")
        monkeypatch.setenv(superlink.PORT, "20002")
        monkeypatch.setattr(superlink, "_free", lambda port: True)
        link = SuperLink(0, 20001, superlink.bin_dir())
        monkeypatch.setattr(superlink, "superlink", lambda home: link)
        superlink.database_of(tmp_path).parent.mkdir()
        assert superlink.environment(home)[superlink.PORT] == "20001"
        with pytest.raises(RunError, match=f"SuperLink of {tmp_path} has port 20001, not 5"):
            superlink.environment(home, 5)

    @pytest.fixture(params=[False, True], ids=["home", "default"])
    def there(self, request, tmp_path, monkeypatch):
        """Return meet(link): the environment where it seems to run, here or in the default home."""
        monkeypatch.setenv("FLWR_HOME", str(tmp_path) if request.param else "/somewhere")
        monkeypatch.setenv(superlink.PORT, "20001")
        superlink.database_of(tmp_path).parent.mkdir()

        def meet(link, loggers=""):
            monkeypatch.setattr(superlink, "superlink", lambda home: link)
            return superlink.environment(None if request.param else tmp_path, loggers=loggers)

        stop = "fedapps stop" + ("" if request.param else f" --home {tmp_path}")
        meet.end = rf"; end it and its runs \({stop}\), or use another --home$"
        return meet

    def test_a_superlink_of_another_environment_is_refused(self, there, tmp_path):
        assert there(SuperLink(0, 20001, superlink.bin_dir()))[superlink.PORT] == "20001"
        with pytest.raises(RunError, match=f"SuperLink of {tmp_path} runs in {tmp_path}/venv, not "
                                           f".*{there.end}"):  # fmt: skip
            there(SuperLink(0, 20001, tmp_path / "venv" / "bin"))

    @pytest.mark.parametrize(("folder", "variables", "loggers", "problem"), [
        ("local-superlink", {"WANDB_MODE": "offline", "LANG": "C"}, "wandb", ""),
        ("disk", {"WANDB_MODE": "offline"}, "wandb", ""),  # local-superlink is a link to it
        ("local-superlink", {}, "wandb", ""),  # as where the system hides a process's variables
        ("local-superlink", {"FEDAPPS_LOG": "INFO"}, "tensorboard,mlflow", ""),
        # As by a plain `flwr run` in a checkout: its actors would use the modules there.
        ("", {"WANDB_MODE": "offline"}, "", "was started in {}, and modules there come before .*"),
        ("local-superlink", {"FEDAPPS_LOG": "debug"}, "tensorboard,wandb",
         "was started with another FEDAPPS_LOG, WANDB_MODE, which would still count"),
        ("local-superlink", {"CUDA_VISIBLE_DEVICES": "7"}, "",
         "was started with another CUDA_VISIBLE_DEVICES, which would still count"),
        ("local-superlink", {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_TMPDIR": "/t"}, "",
         "was started with another RAY_ADDRESS, RAY_TMPDIR, which would still count"),
        ("local-superlink", {"SLURM_JOB_ID": "1001"}, "",  # it ends with that job
         "was started with another SLURM_JOB_ID, which would still count"),
        ("local-superlink", {"JOB_ID": "7", "SGE_TASK_ID": "2"}, "",
         "was started with another JOB_ID, SGE_TASK_ID, which would still count"),
    ])  # fmt: skip
    def test_a_superlink_that_was_started_otherwise_is_refused(
        self, there, tmp_path, monkeypatch, folder, variables, loggers, problem
    ):
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.delenv("FEDAPPS_LOG", raising=False)
        (local := superlink.database_of(tmp_path).parent).rename(tmp_path / "disk")
        local.symlink_to(tmp_path / "disk") if folder == "disk" else local.mkdir()
        superlink.database_of(tmp_path).touch()
        known = {key: value for key, value in os.environ.items() if key != "WANDB_MODE"}
        command = [sys.executable, "-c", "input()"]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        env = known | variables if variables else {}
        with subprocess.Popen(command, cwd=tmp_path / folder, env=env, **pipes) as process:
            link = SuperLink(process.pid, 20001, superlink.bin_dir())
            expected = rf"^the SuperLink of {tmp_path} {problem.format(tmp_path)}{there.end}"
            with pytest.raises(RunError, match=expected) if problem else nullcontext():
                assert there(link, loggers)

    @pytest.mark.parametrize(("uri", "refused"), [
        ("sqlite:///mlflow.db", True), ("./mlruns", True), ("file:mlruns", True),
        ("mlruns", True), ("~/mlruns", True), ("sqlite+pysqlite:///mlflow.db", True),
        ("sqlite+pysqlite:////disk/mlflow.db", False),
        ("sqlite:////disk/mlflow.db", False), ("/disk/mlruns", False), ("", False),
        ("file:///disk/mlruns", False), ("file:/disk/mlruns", False), ("databricks", False),
        ("http://127.0.0.1:5000", False), ("postgresql://host/runs", False),
    ])  # fmt: skip
    def test_a_store_of_mlflow_must_be_absolute(self, tmp_path, monkeypatch, uri, refused):
        """MLflow would look for it in the folder of the SuperLink."""
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        told = f'^MLFLOW_TRACKING_URI = "{re.escape(uri)}": must be absolute, for example sqlite:'
        with pytest.raises(RunError, match=told) if refused else nullcontext():
            superlink.environment(tmp_path, loggers="tensorboard,mlflow")
        assert superlink.environment(tmp_path, loggers="wandb")
        assert superlink.environment(tmp_path, own=False, loggers="mlflow")

    @pytest.mark.parametrize("image", ["same", "other", "unknown"])
    def test_superlink_with_programs_of_another_image_is_refused(
        self, image, there, tmp_path, monkeypatch
    ):
        """The same image can be mounted anew for each command; root's cannot be read by others."""
        link, real = SuperLink(0, 20001, superlink.bin_dir()), Path.stat
        seen = {"same": link.bin_dir, "other": tmp_path, "unknown": tmp_path / "gone"}[image]
        path = Path(f"/proc/{link.pid}/root{link.bin_dir}")
        monkeypatch.setattr(
            Path, "stat", lambda self, **how: real(seen if self == path else self, **how)
        )
        told = f"runs in a container that has another {link.bin_dir}{there.end}"
        with pytest.raises(RunError, match=told) if image == "other" else nullcontext():
            there(link)

    def test_superlink_whose_folder_was_deleted_gets_no_run_that_it_cannot_store(
        self, there, monkeypatch
    ):
        """Such a run waited for ever. One that has just begun has no database yet, either."""
        link = SuperLink(1, 20001, superlink.bin_dir())  # process 1 is as old as the machine
        assert superlink.STARTED >= PATIENCE  # Flower still waits for one of this age
        monkeypatch.setattr(superlink, "STARTED", link.age + 60)
        assert there(link)
        monkeypatch.setattr(superlink, "STARTED", link.age - 1)
        with pytest.raises(RunError, match=f"has lost its database.*{there.end}"):
            there(link)
        assert there(replace(link, in_memory=True))

    @pytest.mark.parametrize("is_default", [False, True])
    def test_a_database_that_another_machine_uses_is_refused(
        self, is_default, tmp_path, monkeypatch
    ):
        """As over NFS: nothing here is a SuperLink of this home, but SQLite's lock is seen."""
        database, home = superlink.database_of(tmp_path), None if is_default else tmp_path
        database.parent.mkdir()
        monkeypatch.setenv("FLWR_HOME", str(tmp_path) if is_default else "/somewhere")
        monkeypatch.setattr(superlink, "_free", lambda port: True)
        command = [sys.executable, "-c", OPEN, str(database)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **pipes) as other:
            assert other.stdout.readline() == b"open\n"
            told = f"{database} is in use, but not by a SuperLink of this machine"
            with pytest.raises(RunError, match=f"^{told}.* use --home "):
                superlink.environment(home)
            superlink.environment(home, own=False)
            other.stdin.close()
        assert superlink.environment(home)


# As Flower has it open.
OPEN = """
import sqlite3, sys
opened = sqlite3.connect(sys.argv[1])
opened.execute("PRAGMA journal_mode=WAL")
opened.execute("CREATE TABLE runs (id)")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_folder_without_an_app_is_refused_with_advice(tmp_path):
    with pytest.raises(RunError, match="run the command in the project's folder, or give it"):
        inputs.staged(tmp_path).__enter__()


def test_bundle_of_the_staged_app_is_the_same(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    app = tmp_path / "app"
    shutil.copytree(EMPTY_APP, app)
    (app / ".gitignore").write_text("/runs/\n/cache/\n*.log.md\n")
    (app / "README.md").write_text("read me")
    for ignored in (".venv/lib/x.py", "runs/a/x.json", "cache/x.py", "a.log.md"):
        (app / ignored).parent.mkdir(parents=True, exist_ok=True)
        (app / ignored).write_text("")
    (app / "data").mkdir()
    (app / "data" / "huge.npz").write_text("")
    (app / "empty_app" / "cache").mkdir()
    (app / "empty_app" / "cache" / "kept.py").write_text("")
    with inputs.staged(app) as copy:
        found = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
        assert build_fab_from_disk(copy) == build_fab_from_disk(app)
    assert "empty_app/cache/kept.py" in found and "README.md" in found
    assert not {file for file in found if file.startswith((".venv", "runs", "cache", "data"))}
    assert not copy.exists()


@pytest.mark.parametrize("prepare", [
    lambda: inputs.staged(EMPTY_APP), lambda: inputs.merged(["lr=0.1"]),
])  # fmt: skip
def test_a_full_folder_of_temporary_files_is_named(prepare, tmp_path, monkeypatch):
    """The system names what was read, or nothing."""

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "server_app.py")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr(Path, "write_text", full)
    told = rf"^cannot write to {tmp_path}/fedapps-\w+: No space left on device; set TMPDIR to "
    with pytest.raises(RunError, match=told):
        prepare().__enter__()
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def running(monkeypatch):
    """The SuperLink in the background, which seems to run."""
    monkeypatch.setattr(superlink, "superlink", lambda _: SuperLink(0, 1, superlink.bin_dir()))


@pytest.mark.usefixtures("flwr", "running")
class TestLaunch:
    def test_failed_run_is_told_by_its_status(self, flwr, tmp_path):
        flwr(f"print({LISTED!r} if 'ls' in sys.argv else {FAILED_LOG!r})")
        echoed: list[str] = []
        ended = launch.launch(EMPTY_APP, ["sleep=1.0"], home=tmp_path, echo=echoed.append)
        assert (ended.run_id, ended.status) == (9621920773214295782, "finished:failed")
        assert ended.details == f"{TRACE}round 2 fails as asked" and not ended.completed
        assert echoed[4].startswith("\x1b[91m") and ended.lines[4].startswith("ERROR")

    @pytest.mark.parametrize("is_default", [False, True])
    def test_a_superlink_starts_in_a_folder_without_code(
        self, is_default, flwr, tmp_path, monkeypatch
    ):
        """What is in its folder comes before the app on the path of its actors."""
        home = tmp_path / "home"
        monkeypatch.setenv("FLWR_HOME", str(home) if is_default else "/somewhere")
        monkeypatch.setattr(superlink, "_free", lambda port: True)
        monkeypatch.chdir(EMPTY_APP)
        flwr("import os; print(os.getcwd(), os.environ['FLWR_HOME'])")
        ended = launch.launch(Path(), home=None if is_default else home, echo=lambda line: None)
        assert ended.lines == [f"{home}/local-superlink {home}"]

    def test_command_line(self, flwr, tmp_path, capsys):
        flwr("print(*sys.argv[1:], sep='|')")
        arguments = [str(EMPTY_APP), "-c", "sleep=1.0", "--home", str(tmp_path / "home")]
        assert cli.main(["run", *arguments, "--federation-config", FEDERATION]) == 1
        first, last = capsys.readouterr().out.splitlines()
        options = rf"\|--stream\|--run-config\|/.*\.toml\|--federation-config\|{FEDERATION}"
        assert re.fullmatch(rf"run\|/.*{options}", first)
        assert last == "error: the run is not started"

    def test_slow_superlink_gets_another_chance(self, flwr, tmp_path):
        flwr("print('Failed to start local SuperLink within 15s.')")
        echoed: list[str] = []
        ended = launch.launch(EMPTY_APP, home=tmp_path, echo=echoed.append)
        assert ended.status == "not started" and len(echoed) == 2 * launch.STARTS - 1

    @pytest.mark.parametrize(
        ("before", "lives"), [(False, ""), (True, ""), (False, "here"), (False, "elsewhere")]
    )
    def test_a_half_made_database_stops_nothing(self, before, lives, flwr, tmp_path, monkeypatch):
        """Flower kills a SuperLink that is slow; none starts on what that one has left.

        It is another's if a SuperLink lives there in the end: two began in a new home at once, on
        this machine or on two that share the home.
        """
        database = superlink.database_of(tmp_path)
        if lives != "here":
            monkeypatch.setattr(superlink, "superlink", lambda home: None)
        elsewhere = lives == "elsewhere"
        monkeypatch.setattr(superlink, "in_use", lambda path: elsewhere and path.exists())
        flwr(f"""
            from pathlib import Path
            database = Path({str(database)!r})
            print("there" if database.exists() else "none")
            database.touch()
            print("Failed to start local SuperLink within 15s.")
        """)
        database.parent.mkdir()
        if before:  # a whole one, with the runs of before
            database.touch()
        ended = launch.launch(EMPTY_APP, home=tmp_path, echo=lambda line: None)
        assert ended.lines[0] == ("there" if before or lives else "none")  # at the last start
        assert database.exists() == bool(before or lives)

    @pytest.fixture
    def first_answer(self, flwr, tmp_path):
        """Return answer(text): what `flwr ls` prints once, about a run that has failed by then."""
        return lambda text: flwr(f"""
            from pathlib import Path
            asked = Path({str(tmp_path / "asked")!r})
            if "run" in sys.argv:
                print("Successfully started run 7")
            else:
                print({LISTED!r} if asked.exists() else {text!r})
                asked.touch()
        """)

    def test_broken_log_is_not_the_end_of_the_run(self, first_answer, tmp_path):
        first_answer(LISTED.replace("finished:failed", "running"))
        echoed: list[str] = []
        ended = launch.launch(EMPTY_APP, home=tmp_path, echo=echoed.append)
        assert ended.status == "finished:failed"
        assert echoed[-1] == "the log was cut off; run 7 is running, waiting for its end"

    def test_an_answer_that_fails_is_asked_for_again(self, first_answer, tmp_path, monkeypatch):
        """The connection that ended the log is often gone for `flwr ls`, too."""
        monkeypatch.setattr(launch.time, "sleep", lambda pause: None)
        first_answer(NOT_LISTED)
        ended = launch.launch(EMPTY_APP, home=tmp_path, echo=lambda line: None)
        assert ended.status == "finished:failed"
        (tmp_path / "asked").unlink()
        monkeypatch.setattr(launch, "PATIENCE", -1.0)
        with pytest.raises(RunError, match=r"Run ID not found.*run 7 may still be going on"):
            launch.launch(EMPTY_APP, home=tmp_path, echo=lambda line: None)

    @pytest.mark.parametrize("told", ["", ", goes on after round 3"])
    def test_after_the_end_of_a_superlink_the_command_is_told_that_resumes_the_run(
        self, flwr, tmp_path, monkeypatch, told
    ):
        monkeypatch.setattr(launch, "PATIENCE", -1.0)
        flwr(f"""
            if "run" in sys.argv:
                print("Successfully started run 7")
                print("run directory: /runs/my run{told}")
            else:
                print("Connection to the SuperLink is unavailable.")
        """)
        with pytest.raises(RunError) as caught:
            launch.launch(EMPTY_APP, home=tmp_path, echo=lambda line: None, connection="site")
        assert str(caught.value) == (
            "flwr ls: Connection to the SuperLink is unavailable.; run 7 may still be going on: ask"
            " again with flwr ls; if the SuperLink was killed, start it again and fedapps run"
            f" {EMPTY_APP} --home {tmp_path} --connection site --resume '/runs/my run'"
        )

    def test_a_run_that_does_not_begin_is_explained_while_it_is_waited_for(
        self, flwr, tmp_path, monkeypatch
    ):
        """The line comes before the run's first one, which waits for it here."""
        monkeypatch.setattr(launch, "LONG_START", 0.0)
        told = tmp_path / "told"
        flwr(f"""
            from pathlib import Path
            if "ls" in sys.argv:
                print({LISTED!r})
            else:
                print("Successfully started run 7\\nStarting logstream for run_id `7`")
                for _ in range(600):
                    if Path({str(told)!r}).exists():
                        break
                    time.sleep(0.1)
                print("INFO: Start `flwr-serverapp` process")
        """)
        echoed: list[str] = []

        def echo(line):
            echoed.append(line)
            if "docs/devices.md#a-run-that-does-not-begin" in line:
                told.touch()

        launch.launch(EMPTY_APP, home=tmp_path, echo=echo)
        assert [line.partition(" has not begun")[0] for line in echoed] == [
            "Successfully started run 7", "Starting logstream for run_id `7`", "run 7",
            "INFO: Start `flwr-serverapp` process",
        ]  # fmt: skip

    def test_a_run_that_begins_is_not_explained(self, flwr, tmp_path, monkeypatch):
        seen: list[object] = []
        timer = SimpleNamespace(start=lambda: seen.append("start"),
                                cancel=lambda: seen.append("cancel"))  # fmt: skip
        monkeypatch.setattr(launch.threading, "Timer", lambda after, _: seen.append(after) or timer)
        flwr(f"print({LISTED!r} if 'ls' in sys.argv else {FAILED_LOG!r})")
        launch.launch(EMPTY_APP, home=tmp_path, echo=seen.append)
        first = next(line for line in FAILED_LOG.splitlines() if line.startswith("empty-app"))
        assert seen[seen.index("start") - 1] == launch.LONG_START
        assert seen.index("start") < seen.index("cancel") < seen.index(first)

    def test_dead_superlink_loses_the_run(self, flwr, tmp_path, monkeypatch):
        flwr("print('Successfully started run 7\\nrun directory: /runs/my run')")
        monkeypatch.setattr(superlink, "superlink", lambda home: None)
        monkeypatch.chdir(EMPTY_APP)
        monkeypatch.setenv("FLWR_HOME", str(tmp_path / "default"))
        nodes = "num-supernodes=4 client-resources-num-cpus=1"
        own = f" --home {tmp_path}"
        for app, home, words, given, told in (
            (Path(), tmp_path, own, "", ""),
            (Path(), None, "", "", ""),
            (EMPTY_APP, tmp_path, f" {EMPTY_APP}{own}", nodes, f" --federation-config '{nodes}'"),
        ):
            ended = launch.launch(
                app, federation_config=given, home=home, port=45678, echo=lambda line: None
            )
            assert ended.status == "lost" and ended.error.endswith(
                f"superlink.log; resume it: fedapps run{words} --port 45678{told}"
                " --resume '/runs/my run'"
            )

    @pytest.mark.parametrize(("default", "connection", "own"), [
        ("site", "", False), ("site", "sim", True), ("sim", "", True), ("sim", "site", False),
    ])  # fmt: skip
    def test_the_superlink_of_config_toml_is_that_of_the_run(
        self, flwr, tmp_path, monkeypatch, default, connection, own
    ):
        """No local one is needed for a run elsewhere; one on it has its port, and can be lost."""
        flwr(f"""
            import os
            print(os.environ.get({superlink.PORT!r}), *sys.argv[3:4])
            print({LISTED!r} if "ls" in sys.argv else "Successfully started run 7")
        """)
        (tmp_path / "config.toml").write_text(SITE.format(default, ":local:"))
        monkeypatch.delenv(superlink.PORT, raising=False)
        monkeypatch.setattr(superlink, "choose_port", lambda home, port: 20001)
        monkeypatch.setattr(superlink, "superlink", lambda home: None)
        ended = launch.launch(EMPTY_APP, home=tmp_path, echo=print, connection=connection)
        words = [str(20001 if own else None), connection or "--stream"]
        assert ended.lines[0].split() == words
        assert ended.status == ("lost" if own else "finished:failed")

    def test_a_flwr_that_is_given_is_used_and_stays(self, flwr, tmp_path):
        said = f"{LISTED!r} if 'ls' in sys.argv else {FAILED_LOG!r}"
        flwr(f"import os; print(os.environ['SITE'], {said})")
        with Flwr({"SITE": "here"}) as given:
            ended = launch.launch(EMPTY_APP, home=tmp_path, echo=lambda line: None, flwr=given)
            assert ended.lines[0].startswith("here ") and ended.status == "finished:failed"
            assert next(given.lines("ls")).startswith("here ")

    @pytest.mark.parametrize("connection", ["", "site"])
    @pytest.mark.parametrize(
        "when", ["Successfully started run 7", "the log was cut off; run 7 is"]
    )
    def test_ctrl_c_says_how_to_stop_the_run(self, when, connection, flwr, tmp_path, monkeypatch):
        """Also while it waits for the end of a run whose log was cut off, and beside a proxy."""
        given = {"http_proxy": "http://10.0.0.1", "no_proxy": "a b", "NO_PROXY": "*"}
        for name, hosts in given.items():
            monkeypatch.setenv(name, hosts)
        wait = "" if "cut" in when else "; time.sleep(60)"
        said = f"print({LISTED!r}) if 'ls' in sys.argv else print('Successfully started run 7')"
        flwr(said.replace("finished:failed", "running") + wait)
        echoed: list[str] = []

        def echo(line: str) -> None:
            echoed.append(line)
            if line.startswith(when):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            launch.launch(EMPTY_APP, home=tmp_path, echo=echo, connection=connection)
        assert "run 7 goes on in the background" in echoed[-1]
        assert f"FLWR_HOME={tmp_path} " in echoed[-1]
        assert " no_proxy='a b,127.0.0.1,localhost' " in echoed[-1]
        assert "NO_PROXY=" not in echoed[-1]  # the shell has it
        assert echoed[-1].endswith(f"flwr stop 7 {connection}".strip())


def test_a_home_that_cannot_be_made_is_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*superlink\.log: Not a directory"):
        superlink.environment(tmp_path / "file/home")


def test_a_process_of_somebody_else_is_a_line(monkeypatch):
    def denied(process, number):
        raise psutil.AccessDenied(process.pid)

    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "send_signal", denied)
            with pytest.raises(RunError, match=f"process {other.pid} belongs to another user"):
                processes.end([other.pid])
    finally:
        other.kill()
        other.wait()


def test_make_clean_gets_over_an_installation_that_was_broken_off(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(shutil.which("false"))  # as one that lacks the packages, it can only fail
    done = subprocess.run(["make", "-C", tmp_path, "clean"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "nothing is installed, so nothing runs" in done.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("ignores", [False, True], ids=["willing", "unwilling"])
def test_stop_ends_the_family_and_nothing_else(tmp_path, monkeypatch, ignores):
    """A stand-in with a child in its session and one in a session of its own."""
    monkeypatch.setattr(processes, "KILL_AFTER", 0.5)
    log_file = tmp_path / "local-superlink" / "superlink.log"
    nap = "import os, signal, time; signal.signal(15, {}); os.write(1, b'up\\n'); time.sleep(120)"
    nap = nap.format("signal.SIG_IGN" if ignores else "signal.SIG_DFL")
    program = tmp_path / "flower-superlink"
    program.write_text(
        "import subprocess, sys\n"
        f"for own in (False, True): subprocess.Popen([sys.executable, '-c', {nap!r}],"
        " start_new_session=own)\n"
        f"{nap}\n"
    )
    command = [sys.executable, program, "--port", "21001", "--log-file", log_file]
    command += ["--database", "state.db"] * (not ignores)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    family = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert family.stdout is not None
        assert [family.stdout.readline() for _ in range(3)] == [b"up\n"] * 3
        link = superlink.superlink(tmp_path)
        assert link == SuperLink(family.pid, 21001, tmp_path, sys.executable, in_memory=ignores)
        with monkeypatch.context() as patch:  # anybody can give a process these words
            patch.setattr(os, "getuid", lambda: psutil.Process(family.pid).uids().real + 1)
            assert superlink.superlink(tmp_path) is None
            log_file.parent.mkdir()
            log_file.touch()  # it belongs to who runs the process, as for root with a user's home
            assert superlink.superlink(tmp_path) == link
        with monkeypatch.context() as patch:  # as of a container that has a home of this name
            patch.setattr(Path, "samefile", lambda root, ours: False)
            assert superlink.superlink(tmp_path) is None and superlink.stop(tmp_path) is False
            patch.setattr(Path, "samefile", lambda root, ours: root.joinpath("gone").stat())
            assert superlink.superlink(tmp_path) == link  # nothing is known about its root
        for other, found in ("/", link), (tmp_path, None), ("/proc/self/ns/net", None):
            with monkeypatch.context() as patch:  # a job of Apptainer has only a root of its own
                patch.setattr(Path, "samefile", but_for(other))
                assert superlink.superlink(tmp_path) == found
        children = [p.pid for p in processes.living() if p.ppid() == family.pid]
        assert len(children) == 2
        assert superlink.stop(tmp_path) is True
        alive = {process.pid for process in processes.living()}
        assert not alive & {family.pid, *children} and bystander.pid in alive
        assert superlink.superlink(tmp_path) is None
    finally:
        for process in (family, bystander):
            process.kill()
            process.wait()


def but_for(other):
    """Return a samefile() that says of one path that it is another file there."""
    real = Path.samefile
    return lambda path, ours: str(ours) != str(other) and real(path, ours)


def test_stop_ends_what_a_killed_superlink_left_but_nothing_of_a_container(tmp_path, monkeypatch):
    program = tmp_path / "flower-superexec"
    program.write_text("input()")
    env = os.environ | {"FLWR_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, program], env=env, stdin=subprocess.PIPE) as left:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "samefile", lambda root, ours: False)
            assert superlink.stop(tmp_path) is False and left.poll() is None
            patch.setattr(Path, "samefile", but_for(tmp_path))
            assert processes.elsewhere(left.pid, tmp_path / "no" / "home")
        assert not processes.elsewhere(left.pid, tmp_path / "no" / "home")
        assert superlink.stop(tmp_path) is True and left.wait() == -signal.SIGTERM


@pytest.mark.slow
class TestReal:
    def test_completed_failed_and_refused_runs(self, home):
        ended = launch.launch(EMPTY_APP, federation_config=FEDERATION, home=home)
        assert ended.completed and ended.error == "" and ended.run_id
        rounds = [line for line in ended.lines if line.startswith("empty-app round=")]
        assert [line.split()[2] for line in rounds] == ["nodes=2"] * 3

        link = superlink.superlink(home)
        assert link is not None and link.port == superlink.choose_port(home)
        assert not (home / "runtime-envs").exists()  # nothing was installed for the run

        ended = launch.launch(EMPTY_APP, ["num-rounds=5", "fail-round=1"], FEDERATION, home)
        assert (ended.status, ended.error) == ("finished:failed", "round 1 fails as asked")

        ended = launch.launch(EMPTY_APP, ["num-round=5"], FEDERATION, home)
        assert (ended.status, ended.run_id) == ("not started", 0)
        assert ended.error == "unknown key num-round, did you mean num-rounds?"
        assert superlink.superlink(home) == link

    @pytest.mark.thorough
    def test_ctrl_c_leaves_the_run_and_stop_ends_it(self, home):
        command = [sys.executable, "-m", "fedapps", "run", str(EMPTY_APP), "--home", str(home)]
        command += ["--run-config", "num-rounds=1000 sleep=0.2", "--federation-config", FEDERATION]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("empty-app round="):
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 130 and "goes on in the background" in out, out
        link = superlink.superlink(home)
        assert link is not None
        mine = _session_members(link.pid)
        assert len(mine) > 5  # superlink, superexec, simulation and Ray's
        token = psutil.Process(link.pid).environ()["RAY_AUTH_TOKEN"]
        assert [_joins_ray(mine, key) for key in ("", "0" * 64, token)] == [False, False, True]
        assert superlink.stop(home) is True
        assert not mine & {process.pid for process in processes.living()}


def _session_members(root: int) -> set[int]:
    listed = {process.pid: process.info["ppid"] for process in processes.living()}
    leaders = {root, *(pid for pid, parent in listed.items() if parent == root)}
    return {pid for pid in listed if processes.session_of(pid) in leaders}


def _joins_ray(processes: set[int], token: str) -> bool:
    """Tell whether a program with this token can use the Ray whose processes these are."""
    servers = [psutil.Process(pid) for pid in processes]
    [gcs] = [server for server in servers if server.name() == "gcs_server"]
    [port] = {c.laddr.port for c in gcs.net_connections() if c.status == psutil.CONN_LISTEN}
    program = (
        "import ray\nfrom ray.util import get_node_ip_address as ip\n"
        f"ray.init(address=ip() + ':{port}', logging_level='ERROR')\nprint('joined')"
    )
    mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    known = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-c", program], env=known | mode, capture_output=True, text=True
    )
    assert "joined" in found.stdout or "ConnectionError" in found.stderr, found.stderr
    return "joined" in found.stdout
