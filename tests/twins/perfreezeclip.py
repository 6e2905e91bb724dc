"""PerFreezeClip (Electronics 2024): Algorithm 1 and adap_clip."""

import numpy as np
import torch

from tests.twins.common import by_size, fit, gradients_of, rounds, scored, state, under
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "local-epochs=3 clip-mode=sample perfreezeclip.max-norm=0.8",
    "momentum": "perfreezeclip.freeze-ratio=0.5 perfreezeclip.clip-percentile=60",
}


def adap_clip(world, history):
    """Clip to min(percentile of the norms so far, mu); the history gets a norm for each step."""

    def scale(found, norm, limit):
        return [g * (limit / norm if norm > limit else 1.0) for g in found]

    def norm_of(found):
        return float(torch.cat([g.flatten() for g in found]).norm())

    def clipped(model, x, y):
        if world.s.clip_mode == "batch":
            samples = [gradients_of(model, x, y)]
        else:
            samples = [gradients_of(model, x[k : k + 1], y[k : k + 1]) for k in range(len(y))]
        norms = [norm_of(found) for found in samples]
        history.append(float(np.mean(norms)))
        percentile = np.percentile(history, world.s.clip_percentile)
        limit = min(float(percentile), world.s.max_norm)
        parts = [scale(*pair, limit) for pair in zip(samples, norms, strict=True)]
        return [torch.stack(gradients).mean(0) for gradients in zip(*parts, strict=True)]

    return clipped


def perfreezeclip(world):
    """Epochs of the head with the body frozen, then of the body; in the last round of all."""
    epochs, last = world.s.local_epochs, world.s.num_rounds
    frozen = min(max(int(world["perfreezeclip.freeze-ratio"] * epochs + 0.5), 1), epochs - 1)
    server, kept, norms = world.initial, {}, {}
    for t, chosen, lr in rounds(world):
        stages = [(world.head, 0, frozen), (world.body, frozen, epochs - frozen)]
        if t == last and world["perfreezeclip.final-round-full"]:
            stages = [(world.names, 0, epochs)]
        sent = {}
        for i in chosen:
            model = world.model(server, kept.get(i, {}))
            for layers, first, count in stages:
                history = norms.setdefault(i, {}).setdefault("+".join(layers), [])
                batches = world.batches("train", t, i, count, first)
                fit(world, model, layers, batches, lr, adap_clip(world, history))
            kept[i] = state(model, world.keys(world.head))
            sent[i] = state(model, world.keys(world.body))
        server = server | by_size(world, sent)
    clip = f"{world.s.clip_percentile:g}-{world.s.clip_mode}-{world.s.clip_history}"
    seen = {
        i: {f"norms/{layers}/{clip}": torch.tensor(values) for layers, values in own.items()}
        for i, own in norms.items()
    }
    scores = scored(world, lambda i: world.model(server, kept.get(i, {})))
    own = under("model/", kept)
    return Outcome(server, {i: own[i] | seen[i] for i in own}, scores)
