"""`fedapps nightly` on devices in this process: each run goes on from the model of the last one."""

import hashlib
import json
import shutil
from argparse import ArgumentParser

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from safetensors.numpy import load_file

from fedapps import cli, launch
from fedapps.cli import nightly
from fedapps.core import config
from fedapps.core.files import held
from fedapps.engine import ledger
from fedapps.engine.accounting import alone
from fedapps.serial import run_serial
from tests.device.helpers import RUN, initial_copy
from tests.support.fits import fail_fits
from tests.support.tiny import BASE

KEYS = f'{RUN} strategy="fedavg" model="lenet5" local-epochs=1 num-rounds=1'


@pytest.fixture
def night(no_plots, nodes, tmp_path, capsys):
    """Return night(*words, keys=) -> (status, what was printed, complaint) of the command."""

    def night(*words, keys="", new=True):
        words = ["--folder", tmp_path / "federation", *words]
        if new:
            for node in nodes:
                told = " ".join(f'{k}="{v}"' if k != "client-id" else f"{k}={v}" for k, v in
                                node.items())  # fmt: skip
                words += ["--node-config", told]
            words += ["-c", BASE, "-c", KEYS, "-c", keys]
        status = cli.main(["nightly", *map(str, words)])
        told = capsys.readouterr()
        return status, told.out, told.err

    return night


@pytest.fixture
def key(tmp_path):
    assert cli.main(["nightly", "--make-key", str(tmp_path / "model.key")]) == 0
    return tmp_path / "model.key"


def model(tmp_path, number):
    return tmp_path / "federation" / f"run-{number:04}" / "model.safetensors"


def verified(path, public):
    """Check a signature with `cryptography` itself."""
    manifest, signature = (path.with_suffix(f".manifest.{kind}") for kind in ("json", "sig"))
    loaded = serialization.load_pem_public_key(public.read_bytes())
    loaded.verify(signature.read_bytes(), manifest.read_bytes())
    return json.loads(manifest.read_bytes())


def starts_from(nodes, path):
    own = [initial_copy(node["state-dir"]) for node in nodes]
    return all(file.read_bytes() == path.read_bytes() for file in own)


def test_nights(night, key, nodes, tmp_path, make_npz, fits):
    """Three nights with new data, a roll back, and an altered model."""
    changing = make_npz(tmp_path / "mine.npz", train=48)
    nodes[1] |= {"data": str(changing), "model-key": str(key.with_suffix(".pub"))}
    private = f'dp.mode="local" dp.clip-norm=0.01 dp.delta={1e-5} dp.secret-noise=true'
    trained = []
    for number, size in ((1, 48), (2, 64), (3, 80)):
        make_npz(changing, train=size)
        fits.clear()
        status, out, err = night("--key", key, keys=private)
        assert (status, err) == (0, "")
        assert f"/run-{number:04}" in out.splitlines()[-1]
        found = verified(model(tmp_path, number), key.with_suffix(".pub"))
        assert found["epsilon"] == pytest.approx(alone(1.0).epsilon(number, 1e-5))
        trained.append({c.client: update.num_examples for c, _, _, update in fits}[1])
        if number > 1:
            assert starts_from(nodes, model(tmp_path, number - 1))
            before = load_file(model(tmp_path, number - 1))
            for client, *_ in fits:
                for name, value in client.workspace.initial.items():
                    np.testing.assert_array_equal(value, before[name])
    assert trained == [48, 64, 80]

    status, out, _ = night("--history", new=False)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["run-0001", "run-0002", "run-0003"]
    assert f"{alone(1.0).epsilon(3, 1e-5):.4g}" in lines[3] and lines[3].split()[-1] == "signed"
    assert lines[-1] == "the next run starts from the model of run-0003, round 1"

    _, out, _ = night("--roll-back", new=False)
    assert out == "the next run starts from the model of run-0002, round 1\n"
    _, out, _ = night("--roll-back", "run-0001", new=False)
    assert out == "the next run starts from the model of run-0001, round 1\n"
    status, *_ = night("--key", key, keys=private)
    assert status == 0 and starts_from(nodes, model(tmp_path, 1))
    nights = ledger.read(tmp_path / "federation").runs
    assert [n.parent for n in nights] == ["", nights[0].run, nights[1].run, nights[0].run]

    path = model(tmp_path, 4)
    path.write_bytes(model(tmp_path, 3).read_bytes())
    status, _, err = night("--key", key, keys=private)
    assert status == 1 and err.startswith(f"error: {path}: it was altered; its SHA-256 is ")
    assert err.endswith("; go on from another model with --roll-back\n") and err.count("\n") == 1
    assert len(ledger.read(tmp_path / "federation").runs) == 4


@pytest.mark.parametrize("lost", [1, 2])
def test_a_night_whose_last_round_had_no_update_says_so(lost, night, monkeypatch):
    """Its model is the start of the next night, and may be why all clients have failed."""
    fail_fits(monkeypatch, lambda round_, client: round_ == lost)
    status, out, _ = night(keys="num-rounds=2")
    told = "warning: round 2, the last one, had no update, and the next run of the federation sta"
    assert status == 0 and out.count(told) == (lost == 2)


@pytest.mark.parametrize("name", ["model.pub", "none.key"])
def test_a_key_that_cannot_sign_is_told_before_the_night(name, night, key):
    status, _, err = night("--key", key.with_name(name))
    said = f"error: {key.with_name(name)}: cannot be read as a private key ("
    assert status == 1 and err.startswith(said) and err.count("\n") == 1
    assert night("--history", new=False)[1].startswith("no runs yet in ")


def test_the_first_night_can_be_rolled_back_to_the_seed(night, nodes, tmp_path):
    assert night("--history", new=False)[1] == f"no runs yet in {tmp_path / 'federation'}\n"
    assert night()[0] == 0
    status, out, _ = night("--roll-back", new=False)
    assert (status, out) == (0, "the next run starts from the seed, or from initial-model\n")
    status, _, err = night("--roll-back", new=False)
    assert status == 1 and "starts from the seed already" in err
    status, _, err = night("--roll-back", "run-0007", new=False)
    assert status == 1 and "must be a finished run of" in err and err.endswith("run-0001\n")
    assert night()[0] == 0
    assert model(tmp_path, 2).read_bytes() == model(tmp_path, 1).read_bytes()  # the same run
    history = night("--history", new=False)[1]
    assert "unsigned" in history and "inf" not in history  # no privacy: docs/privacy.md


def test_with_a_key_an_unsigned_model_is_no_start_until_somebody_signs_it(night, key, tmp_path):
    assert night()[0] == 0
    status, _, err = night("--key", key)
    assert status == 1 and "it is not signed, but must be, with the key of" in err
    assert err.endswith("--roll-back, or, if you trust this one, --sign it\n")
    folder = model(tmp_path, 1).parent
    status, _, err = night("--sign", folder, new=False)
    assert status == 1 and err == "error: --sign: needs a key; use --key FILE\n"
    assert night("--sign", folder, "--key", key, new=False)[0] == 0
    verified(model(tmp_path, 1), key.with_suffix(".pub"))
    assert night("--key", key)[0] == 0


def test_a_finished_night_that_is_not_signed_is_not_to_be_resumed_but_signed(night, key, tmp_path):
    """As after a dropped connection: the run goes on without the command that would sign it."""
    assert night()[0] == 0
    begin = f"error: --resume: the last run of {tmp_path / 'federation'} has finished"
    assert night("--resume") == (1, "", f"{begin}; start a new one\n")
    unsigned = f"{begin}, but is not signed; --sign it or --roll-back\n"
    assert night("--resume", "--key", key) == (1, "", unsigned)
    assert night("--roll-back", new=False)[0] == 0
    assert night("--resume", "--key", key) == (1, "", f"{begin}; start a new one\n")


def test_only_the_model_of_a_run_that_is_over_is_signed(night, key, tmp_path, monkeypatch):
    """The run would make the signature void when it ends."""
    assert night()[0] == 0
    path = model(tmp_path, 1)
    for given in (path, path.parent):
        with held(path.parent):
            status, out, err = night("--sign", given, "--key", key, new=False)
        assert (status, out) == (1, "") and "run-0001: this run is going on in another" in err
    with monkeypatch.context() as patch:
        fail_fits(patch, lambda round_, client: round_ > 1)
        assert night(keys="num-rounds=5 evaluate-every=0")[0] == 1
    unfinished = model(tmp_path, 2)
    shutil.copy(path, unfinished)
    status, out, err = night("--sign", unfinished, "--key", key, new=False)
    said = f"error: {unfinished.parent}: has not finished; --resume it before you sign its model\n"
    assert (status, out, err) == (1, "", said)
    assert not [*(tmp_path / "federation").glob("*/*.sig")]
    shutil.copy(path, tmp_path / "elsewhere.safetensors")
    assert night("--sign", tmp_path / "elsewhere.safetensors", "--key", key, new=False)[0] == 0


def test_the_history_says_what_is_left_of_each_model(night, key, tmp_path):
    def states(*words):
        lines = night("--history", *words, new=False)[1].splitlines()
        return [line.split()[-1] for line in lines[1:-1]]

    for signer in (["--key", key], ["--key", key], []):
        assert night(*signer)[0] == 0
    assert states() == states("--key", key) == ["signed", "signed", "unsigned"]
    path = model(tmp_path, 2)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert states() == ["signed", "altered", "unsigned"]
    manifest = path.with_suffix(".manifest.json")  # whoever has no key can alter it, too
    told = json.loads(manifest.read_bytes())
    told["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(told))
    for given in (key, key.with_suffix(".pub")):
        assert states("--key", given) == ["signed", "altered", "unsigned"]
    path.unlink()
    path.mkdir()
    assert states() == ["signed", "unreadable", "unsigned"]
    shutil.rmtree(path.parent)
    assert states() == ["signed", "gone", "unsigned"]
    status, _, err = night("--roll-back", "run-0002", new=False)
    said = f"error: cannot read {path}: No such file or directory; go on from another model with "
    assert (status, err) == (1, f"{said}--roll-back\n")  # there is nothing to --sign

    shutil.rmtree(model(tmp_path, 1).parent)  # no other night than the start is needed any more
    assert night()[0] == 0 and states() == ["gone", "gone", "unsigned", "unsigned"]
    assert model(tmp_path, 4).exists()


def test_two_nights_at_once_are_one_too_many(night, tmp_path):
    (tmp_path / "federation").mkdir()
    with held(tmp_path / "federation"):
        status, _, err = night()
        assert night("--roll-back", new=False) == (1, "", err)
    assert status == 1 and "another run of this federation is going on" in err


def test_no_night_begins_while_the_last_one_goes_on_in_the_background(night, tmp_path):
    """As after Ctrl-C in `nightly --connection`, which gives up the lock of the federation."""
    assert night()[0] == 0
    with ledger.editing(tmp_path / "federation") as book:
        book.runs[-1] = msgspec.structs.replace(book.runs[-1], finished=False)
        book.start = ""
    with held(model(tmp_path, 1).parent):
        status, _, err = night()
        assert night("--roll-back", new=False) == (1, "", err)  # the end of the run would undo it
    assert status == 1 and "run-0001: this run is going on in another process; stop it" in err
    assert night()[0] == 0


@pytest.mark.parametrize(("words", "line"), [
    (["--connection", "site"], "--connection site: devices (--node-config) run in this process"),
    (["--federation-config", "num-supernodes=2"], "--federation-config num-supernodes=2: devices"),
    (["--port", "9000"], "--port 9000: devices (--node-config) run in this process"),
    (["--node-config", "partition-id=0"], "--node-config partition-id: has none of client-id"),
])  # fmt: skip
def test_options_that_devices_in_this_process_cannot_follow_are_refused(words, line, night):
    status, _, err = night(*words)
    assert status == 1 and err.startswith(f"error: {line}") and err.count("\n") == 1
    assert night("--history", new=False)[1].startswith("no runs yet in ")


def test_other_engines_get_the_same_keys(monkeypatch, tmp_path):
    """As `fedapps run` does; here nobody answers."""
    asked = []
    monkeypatch.setattr(launch, "run", lambda options: asked.append(options) or 1)
    parser = ArgumentParser()
    nightly.add_arguments(parser)
    words = ["--connection", "site", "-c", f'runs-dir="{tmp_path}" num-rounds=7']
    assert nightly.run(parser.parse_args(words)) == 1
    (options,) = asked
    values = config.parse(options.run_config)
    assert options.connection == "site" and values["num-rounds"] == 7
    folder = f"{tmp_path}/federation"
    assert (values["federation"], values["runs-dir"]) == (folder, folder)
    assert (values["run-name"], values["initial-model"]) == ("run-0001", "")


@pytest.mark.parametrize("later", [False, True])
def test_a_night_is_resumed_with_the_file_that_it_began_with(
    later, night, key, monkeypatch, tmp_path
):
    """Also if this sets what each night sets by itself: the federation, and the model to begin."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert night()[0] == 0
    own = shutil.copy(model(tmp_path, 1), tmp_path / "own.safetensors")
    file = tmp_path / "night.toml"
    file.write_text(f'federation = "~/nights"\ninitial-model = "{own}"\n')
    words = "--folder", tmp_path / "nights", "--key", key, "-c", file
    assert not later or night(*words)[0] == 0
    keys = "num-rounds=5 evaluate-every=0"
    with monkeypatch.context() as patch:
        fail_fits(patch, lambda round_, client: round_ > 1)
        assert night(*words, keys=keys)[0] == 1
    status, _, err = night(*words, "--resume", keys=keys)
    assert (status, err) == (0, "")
    last = ledger.read(tmp_path / "nights").runs[-1]
    assert (last.round, last.finished, bool(last.parent)) == (5, True, later)


def test_a_night_that_was_made_longer_and_failed_is_said_to_be_no_start(night, monkeypatch):
    assert night()[0] == 0
    resumed = "--resume", night(keys="num-rounds=1")[1].split()[-1]
    keys = "num-rounds=5 evaluate-every=0"
    with monkeypatch.context() as patch:
        fail_fits(patch, lambda round_, client: True)
        assert night(*resumed, keys=keys)[0] == 1
    status, _, err = night()
    assert status == 1 and err == (
        "error: run-0002: was made longer, and has not finished since; finish it with --resume, or"
        " go on from another model with --roll-back\n"
    )
    assert night(*resumed, keys=keys)[0] == night()[0] == 0


def test_a_key_signs_only_the_run_of_its_own_night(night, key, tmp_path, monkeypatch):
    """A trial run of somebody else finishes in the same federation meanwhile, after the night."""
    federation, real = tmp_path / "federation", nightly._serial

    def serial(options):
        status = real(options)
        about = {"federation": str(federation), "runs-dir": str(tmp_path), "run-name": "trial"}
        keys = {"strategy": "fedprox", "dataset": "digits", "num-clients": 3, "model": "mlp"}
        run_serial(config.defaults() | keys | about | {"num-rounds": 1}, plots=False)
        return status

    monkeypatch.setattr(nightly, "_serial", serial)
    assert night("--key", key)[0] == 0
    monkeypatch.undo()
    verified(model(tmp_path, 1), key.with_suffix(".pub"))
    assert (tmp_path / "trial" / "model.manifest.json").exists()
    assert not [*(tmp_path / "trial").glob("*.sig")]
    status, _, err = night("--key", key)
    assert status == 1 and f"{tmp_path / 'trial'}/model.safetensors: it is not signed" in err
    assert night("--roll-back", "run-0001", new=False)[0] == night("--key", key)[0] == 0
    verified(model(tmp_path, 3), key.with_suffix(".pub"))
    for _ in range(2):  # a night that is made longer is signed anew, and so is one that is not
        resumed = "--resume", model(tmp_path, 3).parent, "--key", key
        assert night(*resumed, keys="num-rounds=2")[0] == 0
        assert verified(model(tmp_path, 3), key.with_suffix(".pub"))["round"] == 2
