"""The optimizers against torch's own classes and against the papers' formulas, step by step."""

from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.method import copied
from fedapps.training.draw import Draw
from fedapps.training.optimizers import OPTIMIZERS, optimizer
from fedapps.training.plan import Stage
from tests.support.methods import rehearsal_of

DRAW = Draw(seed=5, phase="train", round=3, client=2)
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
OPTIONS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1}),
    ("adamw", {"weight_decay": 0.0}),
    ("adamw", {"weight_decay": 0.1}),
]


def values(seed=0):
    """Parameters of several shapes, one of them channels last as a convolution's weight is."""
    draws = torch.Generator().manual_seed(seed)
    shapes = [(4, 3, 2, 2), (5, 4), (5,)]
    made = [torch.randn(shape, generator=draws) for shape in shapes]
    made[0] = made[0].to(memory_format=torch.channels_last)
    return [nn.Parameter(value) for value in made]


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_every_step_is_that_of_torch_also_where_a_gradient_is_missing(name, options):
    mine, theirs = values(), values()
    own = optimizer(mine, Stage(layers=(), epochs=1, lr=0.05, optimizer=name, **options))
    reference = TORCH[name](theirs, 0.05, **options)
    draws = torch.Generator().manual_seed(1)
    for step in range(12):
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            gradient = torch.randn(a.shape, generator=draws)
            has_one = (step + i) % 3 > 0 or step > 8  # none in some steps, the first among them
            a.grad, b.grad = (gradient.clone(), gradient.clone()) if has_one else (None, None)
        own.step()
        reference.step()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
            assert a.grad is None
    for a, b in zip(mine, values(), strict=True):
        assert (a - b).abs().max() > 0.05  # the comparison is not one of standing still


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_in_another_memory_format_is_the_same_gradient(name):
    """Fused kernels read memory as it lies: a transposed gradient would move the wrong entries."""
    results = []
    for gradient in (
        torch.arange(6.0).reshape(3, 2).t(),
        torch.arange(6.0).reshape(3, 2).t().contiguous(),
    ):
        parameter = nn.Parameter(torch.ones(2, 3))
        own = optimizer([parameter], Stage(layers=(), epochs=1, lr=0.5, optimizer=name))
        parameter.grad = gradient
        own.step()
        results.append(parameter.detach())
    assert torch.equal(*results)


def test_the_key_knows_the_optimizers_that_there_are():
    literal = get_args(get_type_hints(Settings, include_extras=True)["optimizer"])[0]
    assert set(get_args(literal)) == set(OPTIMIZERS)


def test_what_is_unknown_or_has_no_effect_is_refused():
    for options, message in [
        ({"optimizer": "lion"}, 'optimizer = "lion": must be one of sgd, adam, adamw'),
        (
            {"optimizer": "adam", "momentum": 0.9},
            'momentum = 0.9: no effect on optimizer = "adam"; use 0',
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{message}$"):
            optimizer([], Stage(layers=(), epochs=1, lr=0.1, **options))


def test_a_run_with_momentum_and_adam_ends_before_it_starts(serial_run, tiny_npz):
    with pytest.raises(RunError, match=r'momentum = 0.9: no effect on optimizer = "adamw"; use 0$'):
        serial_run(tiny_npz, 'strategy="fedavg" optimizer="adamw" momentum=0.9')


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_round_and_fine_tuning_take_torchs_steps(tiny_npz, name):
    """Three steps each, on all samples of a client, from the model that it received."""
    keys = f'num-clients=2 optimizer="{name}" local-epochs=3 finetune-epochs=3 lr=0.01'
    whole = tiny_npz.replace("batch-size=8", "batch-size=1000")
    run = rehearsal_of("fedavg", f'{whole} strategy="fedavg" {keys}')
    client = run.make(0)
    wanted, (x, y) = copied(client.model).requires_grad_().train(), client.train_data
    own = TORCH[name](wanted.parameters(), 0.01, weight_decay=0.0)
    for _ in range(3):
        own.zero_grad()
        cross_entropy(wanted(x), y).backward()
        own.step()
    for plan, act in (
        (run.strategy.plan(1, 0), client.train_round),
        (run.strategy.evaluation_plan(1, 0), client.evaluate_round),
    ):
        act(plan, run.strategy.download(1, 0, plan))
        for found, right in zip(client.model.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
