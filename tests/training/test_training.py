"""The trainer against plain PyTorch loops and NumPy models of the same steps."""

from copy import deepcopy
from math import ceil

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fedapps.core.config import defaults, parse, read
from fedapps.core.errors import RunError
from fedapps.models import build
from fedapps.models.blocks import chain
from fedapps.models.layers import layout_of
from fedapps.models.norms import use_batch_statistics
from fedapps.training.augment import crop_flip, windows
from fedapps.training.costs import profile
from fedapps.training.draw import Draw
from fedapps.training.objective import Objective
from fedapps.training.plan import Stage
from fedapps.training.trainer import Trainer
from fedapps.training.workspace import Workspace

DRAW = Draw(seed=5, phase="train", round=3, client=2)
MEBI = 2**20


# Tools ------------------------------------------------------------------------------------


def samples(n, shape, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, *shape, generator=generator)
    return images, torch.randint(classes, (n,), generator=generator)


def make(name, shape=(1, 8, 8), classes=4, bn_stats="shared", **options):
    """A trainer on a fresh model with uneven running statistics."""
    torch.manual_seed(0)
    model = build(name, shape, classes, seed=1) if isinstance(name, str) else deepcopy(name)
    if bn_stats == "batch":
        use_batch_statistics(model)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if "running" in key:
                value.add_(torch.rand(value.shape))
    layout = layout_of(model, 1, bn_stats, False)
    options = {"batch_size": 8, "cache_bytes": 64 * MEBI} | options
    return Trainer(profile(model, layout, shape), **options)


def stage(layers, epochs=1, lr=0.05, **options):
    return Stage(layers=tuple(layers), epochs=epochs, lr=lr, **options)


def state(trainer):
    return {key: value.clone() for key, value in trainer.model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def close(a, b, rtol=1e-5, atol=1e-6):
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=rtol, atol=atol, msg=lambda m, k=key: k + m)


def changed(before, after):
    return {key for key in before if not torch.equal(before[key], after[key])}


class Watch:
    """A loss that looks at the model in every step."""

    def __init__(self, model):
        self.model = model
        self.sizes, self.losses, self.training, self.reached, self.gradients = [], [], [], [], []

    def __call__(self, logits, labels):
        names = {id(p): name for name, p in self.model.named_parameters()}
        value = cross_entropy(logits, labels)
        self.sizes.append(len(labels))
        self.losses.append(value.item())
        modules = self.model.named_modules()
        self.training.append({name for name, module in modules if name and module.training})
        self.reached.append({names[id(leaf)] for leaf in leaves(value.grad_fn)})
        self.gradients.append([n for n, p in self.model.named_parameters() if p.grad is not None])
        return value


def leaves(node):
    """The parameters that autograd will accumulate a gradient into."""
    stack, seen = [node], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        stack += [following for following, _ in node.next_functions]


class Passes:
    """Counts the samples that pass each layer."""

    def __init__(self, model):
        self.samples = {name: 0 for name, _ in model.named_children()}
        for name, layer in model.named_children():
            layer.register_forward_hook(lambda m, args, out, name=name: self.add(name, args[0]))

    def add(self, name, x):
        self.samples[name] += len(x)


# SGD ----------------------------------------------------------------------------------------


def numbers(layer):
    return [value.detach().double().numpy() for value in layer.parameters()]


def test_a_stage_of_a_part_trains_this_part_alone():
    """All but the BatchNorms: these keep parameters and statistics, and normalize with them."""
    trainer = make("lenet5", (1, 28, 28))
    layout = trainer.layout
    part = stage(layout.without_norms(layout.names))
    trainer.check(part)
    before = numbers(trainer.model)
    seen = []
    for module in trainer.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda m, *_: seen.append(m.training))
    done = trainer.train(samples(10, (1, 28, 28), 3), (part,), DRAW)
    keys = [key for key, _ in trainer.model.named_parameters()]
    after = numbers(trainer.model)
    moved = {k for k, old, new in zip(keys, before, after, strict=True) if (old != new).any()}
    assert moved == {*keys} - layout.norms
    assert seen
    assert not any(seen)
    assert done.cost_paper == done.batches * layout.count(part.layers)


def test_prox_pulls_to_the_start_of_the_round_in_a_later_stage_too():
    """Where lr times mu is 1, a step goes all the way back. FedProx's twin has what it computes."""
    trainer, data = make("cnn"), samples(20, (1, 8, 8), 4)
    start, layers = state(trainer), trainer.layout.names
    back = stage(layers, 1, 1e-6, prox_mu=1e6)
    trainer.train(data, (stage(layers, 1, 0.3), back), DRAW)
    close(state(trainer), start, atol=1e-4)
    trainer.train(data, (stage(layers, 1, 0.3),), DRAW)
    assert max((value - start[key]).abs().max() for key, value in state(trainer).items()) > 1e-2


# Frozen layers --------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", ["classifier", "conv2", "conv1 conv2 fc1 fc2", "conv1 fc2"])
def test_only_trained_layers_get_a_gradient_and_are_in_training_mode(trained):
    trainer, data = make("lenet5"), samples(20, (1, 8, 8), 4)
    model, watch = trainer.model.train(), Watch(trainer.model)
    everything = stage(trainer.layout.names)  # leaves no gradient behind
    then = stage(trained.split(), 2, prox_mu=3.0)
    done = trainer.train(data, (everything, then), DRAW, Objective(watch))
    assert done.loss == pytest.approx(np.dot(watch.sizes, watch.losses), rel=1e-5)  # no other term
    parameters = {name for name, _ in model.named_parameters()}
    modules = {name for name, _ in model.named_modules() if name}
    for names, seen in ((parameters, watch.reached), (modules, watch.training)):
        wanted = {name for name in names if name.partition(".")[0] in trained.split()}
        assert seen == [names] * 3 + [wanted] * 6
    assert not any(watch.gradients) and all(p.grad is None for p in model.parameters())
    assert not any(module.training for module in model.modules())  # ready to be scored


def test_an_unknown_layer_is_refused():
    trainer, data = make("cnn"), samples(8, (1, 8, 8), 4)
    with pytest.raises(RunError, match='layer "conv9"'):
        trainer.train(data, (stage(["conv1", "conv9"]),), DRAW)


# Batches and epochs -----------------------------------------------------------------------------


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    trained=st.sampled_from([("body",), ("head",), ("body", "head")]),
)
def test_what_a_training_reports(n, batch_size, epochs, trained):
    """All sums by hand for two linear layers, 6 -> 5 -> 3, and a learning rate of 0."""
    torch.manual_seed(1)
    model = chain(body=nn.Linear(6, 5), head=nn.Linear(5, 3))
    trainer, (images, labels) = make(model, (6,), batch_size=batch_size), samples(n, (6,), 3)
    watch = Watch(trainer.model)
    done = trainer.train((images, labels), (stage(trained, epochs, 0.0),), DRAW, Objective(watch))
    batches = ceil(n / batch_size)
    sizes = [batch_size] * (n // batch_size) + [n % batch_size] * (n % batch_size > 0)
    assert watch.sizes == sizes * epochs  # the last incomplete batch is kept
    assert (done.samples, done.batches, done.skipped) == (n * epochs, batches * epochs, 0)
    count = {"body": 6 * 5 + 5, "head": 5 * 3 + 3}
    assert done.cost_paper == sum(count[name] for name in trained) * batches * epochs
    per_step = {
        ("body",): 30 + 15 + 30 + 15,  # forward; weight of body; through head
        ("head",): 30 + 15 + 15,
        ("body", "head"): 30 + 15 + 30 + 15 + 15,
    }[trained]
    if trained == ("head",) and epochs > 1:  # body once, then from its outputs
        assert done.macs == n * 30 + n * epochs * (15 + 15)
    else:
        assert done.macs == n * epochs * per_step
    w = [numbers(layer) for layer in model]
    logits = (images.double().numpy() @ w[0][0].T + w[0][1]) @ w[1][0].T + w[1][1]
    nll = np.log(np.exp(logits).sum(1)) - logits[np.arange(n), labels.numpy()]
    assert done.mean_loss == pytest.approx(nll.mean(), rel=1e-5)
    assert done.loss == pytest.approx(np.dot(watch.sizes, watch.losses), rel=1e-5)


def test_sums_run_over_stages():
    trainer, data = make("lenet5"), samples(20, (1, 8, 8), 4)
    count = trainer.layout.count
    stages = (stage(["classifier"], 2), stage(["conv1", "fc1"], 3))
    done = trainer.train(data, stages, DRAW)
    assert (done.samples, done.batches) == (20 * 5, 3 * 5)
    assert done.cost_paper == 6 * count(["classifier"]) + 9 * count(["conv1", "fc1"])
    parts = [make("lenet5").train(data, (part,), DRAW) for part in stages]
    assert done.macs == sum(part.macs for part in parts)


def test_a_training_that_failed_leaves_no_gradients_to_the_next():
    """As where a client's own code raises between the gradients and the step."""
    data, part = samples(20, (1, 8, 8), 4), (stage(["fc1", "fc2"]),)
    failed, fresh = make("cnn"), make("cnn")

    def fails(backward, batches):
        backward(batches[0])
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        failed.train(data, part, DRAW, Objective(gradients=fails))
    assert same(state(failed), state(fresh)), "no step was taken"
    for trainer in (failed, fresh):
        trainer.train(data, part, DRAW)
    assert same(state(failed), state(fresh))


def test_no_step_has_no_loss():
    trainer, data = make("cnn"), samples(8, (1, 8, 8), 4)
    for stages in [(), (stage([]),), (stage(["fc2"], 0),)]:
        before = state(trainer)
        done = trainer.train(data, stages, DRAW)
        assert np.isnan(done.mean_loss) and done.batches == done.macs == 0
        assert same(state(trainer), before)


@pytest.mark.parametrize(("name", "trained", "skipped"), [
    ("mobilenet", "all", 2),
    ("mobilenet", "block13", 2),
    ("mobilenet", "conv1 fc", 0),  # conv1's BatchNorm sees 8x8, that of the others is frozen
    ("mobilenet", "fc", 0),
    ("lenet5", "all", 0),
    ("cnn", "all", 0),
    ("conv4", "all", 2),
    ("conv4", "conv3 fc", 0),
])  # fmt: skip
def test_a_batch_of_one_is_skipped_only_where_batchnorm_cannot_take_it(name, trained, skipped):
    trainer, data = make(name), samples(9, (1, 8, 8), 4)
    layers = trainer.layout.names if trained == "all" else trained.split()
    watch = Watch(trainer.model)
    done = trainer.train(data, (stage(layers, 2),), DRAW, Objective(watch))
    assert done.skipped == skipped
    assert watch.sizes == ([8] if skipped else [8, 1]) * 2
    assert (done.samples, done.batches) == (sum(watch.sizes), len(watch.sizes))


def test_a_batch_that_is_too_small_is_not_repeated():
    """Of 17 samples an epoch of 8 batches has 8, 8, 1, 8, 8, 1, 8, 8."""
    trainer, data = make("conv4"), samples(17, (1, 8, 8), 4)
    watch = Watch(trainer.model)
    part = stage(trainer.layout.names, 2, batches=8)
    done = trainer.train(data, (part,), DRAW, Objective(watch))
    assert (done.skipped, watch.sizes) == (0, [8] * 8 * 2)


@pytest.mark.parametrize("trained", ["all", "fc", "conv1"])
def test_batch_statistics_of_one_value_are_skipped_in_frozen_layers_too(trained):
    """Without running statistics BatchNorm uses those of the batch in eval mode as well."""
    trainer, data = make("mobilenet", bn_stats="batch"), samples(9, (1, 8, 8), 4)
    layers = trainer.layout.names if trained == "all" else [trained]
    done = trainer.train(data, (stage(layers, 2),), DRAW)
    assert (done.skipped, done.samples) == (2, 16)


# Cached prefix --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "trained", "cached"), [
    ("cnn", "fc2", "conv1 conv2 fc1"),
    ("cnn", "fc1 fc2", "conv1 conv2"),
    ("lenet5", "classifier", "conv1 conv2 fc1 fc2"),
    ("lenet5", "fc1 classifier", "conv1 conv2"),
    ("lenet5", "conv2 fc2", "conv1"),
    ("lenet5", "conv1 classifier", ""),
    ("mobilenet", "fc", " ".join(["conv1", *(f"block{i}" for i in range(1, 14))])),
])  # fmt: skip
def test_a_cached_prefix_changes_nothing_but_the_work(name, trained, cached):
    data = samples(20, (1, 8, 8), 4)
    part = stage(trained.split(), 3, momentum=0.5, weight_decay=1e-3)
    results = {}
    for use_cache in (True, False):
        trainer = make(name, cache_bytes=64 * MEBI * use_cache)
        passes = Passes(trainer.model)
        done = trainer.train(data, (part,), DRAW)
        results[use_cache] = state(trainer), done
        once = cached.split() if use_cache else []
        wanted = {layer: 20 if layer in once else 60 for layer in trainer.layout.names}
        extra = 2 * (1 + bool(once))  # two zeros for each count of MACs that sees the layer
        assert all(wanted[n] <= k <= wanted[n] + extra for n, k in passes.samples.items())
        spent = 2 * trainer.profile.forward_macs(tuple(cached.split())) * 20 if cached else 0
    (with_cache, fast), (without, slow) = results[True], results[False]
    close(with_cache, without, rtol=1e-5, atol=1e-7)
    assert slow.macs - fast.macs == spent  # two passes of the prefix saved
    assert fast.loss == pytest.approx(slow.loss, rel=1e-5)


def test_a_single_epoch_runs_the_prefix_once_and_all_at_once():
    trainer, sizes = make("cnn"), []
    trainer.model.conv1.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    done = trainer.train(samples(20, (1, 8, 8), 4), (stage(["fc2"], 1),), DRAW)
    assert sizes[-1] == 20
    assert done.macs == 20 * trainer.profile.step_macs(("fc2",), "conv1")


@pytest.mark.parametrize(
    ("name", "changed"), [("cnn", "weight"), ("lenet5", "weight"), ("lenet5", "running_mean")]
)
def test_kept_features_serve_later_rounds_until_the_prefix_changes(name, changed):
    data, part = samples(20, (1, 8, 8), 4), (stage(["fc2"], 2),)
    results = {}
    for keep in (None, "client 3"):
        trainer, runs, macs = make(name), [], []
        trainer.train(data, part, DRAW)  # counts MACs once
        trainer.model.conv1.register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        for round_ in range(4):
            if round_ == 2:
                with torch.no_grad():
                    entries = trainer.model.conv1.state_dict().items()
                    next(value for key, value in entries if key.endswith(changed)).mul_(1.5)
            macs.append(trainer.train(data, part, Draw(5, "train", round_, 2), cache_key=keep).macs)
        assert len(runs) == (4 if keep is None else 2)
        assert len(set(macs)) == 1, "kept or not, the figures are the same"
        results[keep] = state(trainer)
    assert same(results[None], results["client 3"])


def cached_layers(trainer, trained, epochs=2, n=10):
    """The layers that n samples pass once while the others are passed in every epoch."""
    data = samples(n, trainer.profile.shapes[trainer.layout.names[0]], 3)
    step = stage(trained, epochs)
    trainer.profile.step_macs(trainer.layout.slice(trained), trainer.layout.names[0])
    passes = Passes(trainer.model)
    watch = Watch(trainer.model)
    trainer.profile.model.eval()
    done = trainer.train(data, (step,), DRAW, Objective(watch))
    assert done.samples == n * epochs
    return {name for name, k in passes.samples.items() if k < n * epochs}


DROPOUT = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5))
DROPS = chain(a=nn.Linear(4, 5), b=DROPOUT, c=nn.Linear(6, 3))
SIZES = chain(a=nn.Linear(4, 8), b=nn.Linear(8, 64), c=nn.Linear(64, 3))  # 8 and 64 numbers


@pytest.mark.parametrize(("name", "options", "trained", "cached"), [
    ("cnn", {"augment": "crop-flip"}, "fc2", set()),
    ("lenet5", {"bn_stats": "batch"}, "classifier", set()),
    ("cnn", {"bn_stats": "batch"}, "fc2", {"conv1", "conv2", "fc1"}),  # no BatchNorm before it
    (DROPS, {"shape": (4,)}, "c", {"a"}),  # it ends before dropout
    (SIZES, {"shape": (4,), "cache_bytes": 4 * 10 * 64}, "c", {"a", "b"}),
    (SIZES, {"shape": (4,), "cache_bytes": 4 * 10 * 64 - 1}, "c", {"a"}),  # the longest that fits
    (SIZES, {"shape": (4,), "cache_bytes": 4 * 10 * 8}, "c", {"a"}),
    (SIZES, {"shape": (4,), "cache_bytes": 4 * 10 * 8 - 1}, "c", set()),
    (SIZES, {"shape": (4,), "cache_bytes": 0}, "c", set()),
])  # fmt: skip
def test_what_is_cached_of_ten_samples(name, options, trained, cached):
    assert cached_layers(make(name, **options), [trained]) == cached


# Randomness -------------------------------------------------------------------------------------


def test_dropout_draws_from_the_round_and_the_client():
    model = chain(a=nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5)), b=nn.Linear(32, 3))
    data = samples(16, (4,), 3)

    def train(draw, noise):
        trainer = make(model, (4,), batch_size=16)  # one batch: the order is not what differs
        torch.manual_seed(noise)
        trainer.train(data, (stage(["a", "b"], 2),), draw)
        return state(trainer)

    first = train(DRAW, 1)
    assert same(first, train(DRAW, 2))
    for other in [Draw(5, "train", 4, 2), Draw(5, "train", 3, 1), Draw(6, "train", 3, 2)]:
        assert (first["b.weight"] - train(other, 1)["b.weight"]).abs().max() > 1e-4


# Augmentation -------------------------------------------------------------------------------------


def slow_crop_flip(images, top, left, flip):
    n, channels, height, width = images.shape
    out = np.empty_like(images)
    for i in range(n):
        canvas = np.zeros((channels, height + 8, width + 8), images.dtype)
        canvas[:, 4 : 4 + height, 4 : 4 + width] = images[i]
        window = canvas[:, top[i] : top[i] + height, left[i] : left[i] + width]
        out[i] = window[:, :, ::-1] if flip[i] else window
    return out


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 6), st.integers(1, 4), *[st.integers(1, 12)] * 2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_crop_flip_image_by_image(shape, seed):
    draws = np.random.default_rng(seed)
    images = draws.normal(size=shape).astype(np.float32)
    n = shape[0]
    top, left, flip = draws.integers(9, size=n), draws.integers(9, size=n), draws.random(n) < 0.5
    before = images.copy()
    x = torch.from_numpy(images)
    result = crop_flip(x, *windows(top, left, flip, x))
    assert np.array_equal(result.numpy(), slow_crop_flip(images, top, left, flip))
    assert np.array_equal(images, before)


def test_training_sees_the_drawn_crops():
    """Every epoch's images, in the order of the batches, against the slow version.

    An epoch in which nothing is trained counts, too.
    """
    trainer = make("cnn", augment="crop-flip")
    data = samples(20, (1, 8, 8), 4)
    seen = []
    trainer.model.conv1.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    trainer.train(data, (stage(["conv1"], 1), stage([], 1), stage(["fc2"], 1)), DRAW)
    seen = torch.cat([x for x in seen if (x != 1).any()])  # without the ones of the MAC count
    wanted = []
    for epoch in (0, 2):
        shuffled = data[0].numpy()[DRAW.order(epoch, 20).numpy()]
        wanted.append(slow_crop_flip(shuffled, *DRAW.crops(epoch, 20)))
    assert np.array_equal(seen.numpy(), np.concatenate(wanted))
    assert not np.array_equal(*[[*DRAW.crops(epoch, 20)] for epoch in (0, 1)])


def test_crops_of_black_images_are_black(make_npz, tmp_path):
    """What lies beside an image is what a black pixel has become, and not the value 0."""
    black = {f"{part}_images": np.zeros((24, 8, 8), np.uint8) for part in ("train", "test")}
    path = make_npz(tmp_path / "black.npz", 24, 24, **black)
    options = f'strategy="fedavg" dataset="{path}" num-clients=2 partitioner="iid" device="cpu"'
    space = Workspace(read(parse([options, 'augment="crop-flip"'])))
    seen = []
    space.model.conv1.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    images, labels = space.samples(0, "train")
    (pixel,) = images.unique()
    space.trainer.train((images, labels), (stage(["conv1"]),), DRAW)
    *_, last = seen
    assert pixel == last.min() == last.max() == -1


def test_crops_are_drawn_evenly():
    top, left, flip = DRAW.crops(0, 9000)
    for draws in (top, left):
        counts = np.bincount(draws, minlength=9)
        assert len(counts) == 9
        assert ((counts - 1000) ** 2 / 1000).sum() < 26.1  # chi-squared, 8 degrees, p = 0.001
    assert abs(flip.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(top, left)[0, 1]) < 0.04


# Learning rate ------------------------------------------------------------------------------------


def schedule(kind, rounds, lr=0.1):
    plain = read(defaults())
    changes = {"lr_schedule": kind, "num_rounds": rounds, "lr": lr}
    run = msgspec.structs.replace(plain, **changes)
    return [run.round_lr(round_) for round_ in range(1, rounds + 1)]


@pytest.mark.parametrize(("rounds", "plain", "tenth", "hundredth"), [
    (320, 160, 80, 80), (32, 16, 8, 8), (10, 5, 2, 3), (7, 3, 2, 2), (4, 2, 1, 1), (3, 1, 1, 1),
    (2, 1, 0, 1), (1, 1, 0, 0),
])  # fmt: skip
def test_step_schedule(rounds, plain, tenth, hundredth):
    """FedBABU's tables: 0.1 times 0.1 after 1/2 and 3/4 of T = 320 / tau rounds."""
    wanted = [0.1] * plain + [0.01] * tenth + [0.001] * hundredth
    assert schedule("step", rounds) == pytest.approx(wanted, rel=1e-12)


def test_other_schedules():
    assert schedule("constant", 5, 0.3) == [0.3] * 5
    rates = np.array(schedule("cosine", 8, 0.2))
    assert rates == pytest.approx(0.2 * np.cos(np.pi * np.arange(8) / 16) ** 2, rel=1e-12)
    assert rates[0] == 0.2 and rates[4] == pytest.approx(0.1) and (np.diff(rates) < 0).all()
