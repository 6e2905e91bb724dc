"""What a device says about itself in its greeting; the server checks it (`wire/health.py`)."""

import msgspec

from fedapps.core.certificates import given_above
from fedapps.core.settings import Settings
from fedapps.core.signing import SignedModel
from fedapps.device.device import Device
from fedapps.wire import health
from fedapps.wire.hello import Hello


def greeting(device: Device, settings: Settings, model: SignedModel | None = None) -> Hello:
    """Return the greeting of a device, with what it says about itself."""
    hello = device.hello(settings, model)
    certificate = given_above("--root-certificates", beside="--superlink")
    about = health.of_this_machine(device.state_dir, (certificate,))
    return msgspec.structs.replace(hello, health=about)
