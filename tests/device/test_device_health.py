"""Devices tell the server how they are: a run names what will stop them, and is the same."""

import msgspec

from fedapps.core import config
from fedapps.device.device import Device
from fedapps.wire import contacts, health
from tests.device.helpers import DEVICES, RUN


def test_a_run_keeps_its_devices_and_a_simulation_has_none(device_run, serial_run, union):
    folder = device_run('strategy="fedper" num-rounds=2')
    known = contacts.read(folder)
    assert [one.client for one in known.devices] == [*range(DEVICES)]
    for one in known.devices:
        assert one.there and known.written >= one.seen >= one.answered > 0
        assert abs(one.ahead) <= one.within < 60
        assert one.health.torch == known.server.torch != "" and one.health.disk > 0
    assert not (serial_run(union.options, "num-rounds=1") / contacts.FILE).exists()


def test_a_greeting_says_how_the_device_is(nodes, tmp_path):
    settings = config.read(config.parse([RUN]))
    found = Device.of(nodes[1]).hello(settings)
    assert (found.client, found.problem) == (1, "")
    assert found.health.python == health.of_this_machine(tmp_path).python
    wrong = Device.of({**nodes[1], "data": str(tmp_path / "none.npz")}).hello(settings)
    assert wrong.problem and wrong.health


def test_trouble_is_named_and_changes_no_figure(
    device_run, monkeypatch, read_csv, untimed_rounds, capsys
):
    """A device with another version, whose clock is off, and whose certificate ends soon."""
    run = 'strategy="fedper" num-rounds=2 client-state=reset'
    before, greet = device_run(run), Device.hello

    def troubled(device, *given):
        hello = greet(device, *given)
        if device.client != 1:
            return hello
        now = hello.health.clock
        other = {"torch": "1.0", "clock": now - 9000, "certificate": now + 3.5 * health.DAY}
        return msgspec.structs.replace(hello, health=msgspec.structs.replace(hello.health, **other))

    monkeypatch.setattr(Device, "hello", troubled)
    capsys.readouterr()
    folder = device_run(run)
    rows = [tuple(row.values()) for row in read_csv(folder, "events.csv")]
    assert [row[:3] for row in rows] == [
        ("0", "1", "certificate"), ("0", "1", "clock"), ("0", "1", "version"),
    ]  # fmt: skip
    assert "ends in 3 days" in rows[0][3] and "9000 s behind" in rows[1][3]
    assert "torch 1.0 (the server 2." in rows[2][3]
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning: client 1" in line]
    assert len(lines) == 3
    assert untimed_rounds(folder) == untimed_rounds(before)
    model = "model.safetensors"
    assert (folder / model).read_bytes() == (before / model).read_bytes()
