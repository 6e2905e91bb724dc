"""Head epochs with and without the cached prefix (FedSeq's cnn, CIFAR-100's shape, batch 10).

    python -m benchmarks.prefix_cache

Trains the head of one client with 450 random samples for 10 epochs: without the cache, with the
pass that fills it, and on features that are kept already. Prints medians and ratios.
"""

import statistics
import time

import torch

from fedapps import models
from fedapps.models.layers import layout_of, take
from fedapps.training.costs import profile
from fedapps.training.draw import Draw
from fedapps.training.plan import Stage
from fedapps.training.trainer import Trainer

SAMPLES, EPOCHS, BATCH, REPEATS = 450, 10, 10, 7


def seconds(use_cache: bool, keep: int | None, repeats: int) -> tuple[float, dict]:
    """Return the median time of the head epochs and the head after them."""
    model = models.build("cnn", (3, 32, 32), 100, seed=0)
    layout = layout_of(model, 1, "shared", False)
    trainer = Trainer(
        model, layout, profile(model, layout, (3, 32, 32)), BATCH, cache_bytes=2**30 * use_cache
    )
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    labels = torch.randint(100, (SAMPLES,), generator=generator)
    head = Stage(layers=layout.head, epochs=EPOCHS, lr=0.005)
    initial, times, after = {k: v.clone() for k, v in model.state_dict().items()}, [], {}
    for round_ in range(repeats + 1):
        model.load_state_dict(initial)
        begin = time.perf_counter()
        trainer.train((images, labels), (head,), Draw(0, "train", round_, 0), cache_key=keep)
        times.append(time.perf_counter() - begin)
        after = take(model, layout.keys_of(layout.head))
    return statistics.median(times[1:]), after


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    plain, with_pass, kept = [], [], []
    for _ in range(REPEATS):  # side by side, so that all see the same machine
        plain.append(seconds(False, None, 1)[0])
        with_pass.append(seconds(True, None, 1)[0])
        kept.append(seconds(True, 0, 1)[0])
    slow, fill, fast = (statistics.median(times) for times in (plain, with_pass, kept))
    print(f"without cache             {1000 * slow:8.1f} ms")
    print(f"with the pass that fills  {1000 * fill:8.1f} ms  {slow / fill:5.1f} times faster")
    print(f"on kept features          {1000 * fast:8.1f} ms  {slow / fast:5.1f} times faster")


if __name__ == "__main__":
    main()
