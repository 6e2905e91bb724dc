"""What attackers do in a simulation (keys `attack` and `attackers`), on their own side.

They train as their method says, and keep what they would keep; only what leaves them is changed:

- `label-flip`: the targets of training are C - 1 - y (C classes).
- `sign-flip`, `scaled`: instead of w_i, the client sends w - s (w_i - w) or w + s (w_i - w), where
  w is the model from which it started (before `before_training`), and s is `attack-scale`.

What a method sends beside layers stays honest.

What attackers do together, or say about themselves, is in fedapps/engine/collusion.py.
"""

from torch import Tensor

from fedapps.core.settings import Settings
from fedapps.models.layers import Arrays
from fedapps.training.batches import Samples

SIGNS = {"sign-flip": -1.0, "scaled": 1.0}


def changed_upload(settings: Settings, start: Arrays, upload: Arrays) -> Arrays:
    """Return what an attacker uploads (float32) in place of an honest upload."""
    if settings.attack not in SIGNS:
        return upload
    factor = SIGNS[settings.attack] * settings.attack_scale
    return {key: start[key] + factor * (new - start[key]) for key, new in upload.items()}


def changed_samples(settings: Settings, samples: Samples, classes: int) -> Samples:
    """Return an attacker's training samples; targets below 0 stand for no class, and stay."""
    inputs, targets = samples
    if settings.attack != "label-flip":
        return samples
    flipped: Tensor = classes - 1 - targets
    return inputs, flipped.where(targets >= 0, targets)
