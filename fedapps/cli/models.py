"""List the models with their layers, from input to output, and their numbers of parameters.

Choose a model with `-c model=NAME`. The numbers are for 10 classes and images of 3x32x32; for
models that take no images, a series of 128 steps with 6 channels, or 64 tokens of 100 kinds. The
files of your own in models/ are listed, too.

`--check NAME` tries a model of your own: it is built as in a run, and trains some rounds with every
method on random samples, except for split learning, which needs a server.

    fedapps models --check mine --shape 1,28,28
    fedapps models --check mine --targets tokens    # such as one that writes texts on
"""

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.cli.tables import Column, show
from fedapps.core.errors import RunError, named

if TYPE_CHECKING:
    import numpy as np

    from fedapps.core.settings import Settings

COLUMNS = (
    Column("model", 30),
    Column("takes", 8),
    Column("layers, input side first"),
    Column("parameters", 10),
)
SHAPES = {
    "images": (3, 32, 32), "series": (128, 6), "tables": (32,), "tokens": (64,),
    "values": (4, 4, 4, 4),
}  # fmt: skip
NOT_IMAGES = tuple(SHAPES)[1:]
TARGETS = {  # what has to be predicted, and for which samples
    "labels": (*SHAPES,),
    "numbers": NOT_IMAGES,
    "truths": NOT_IMAGES,
    "tokens": ("series", "tokens"),
    "steps": ("series", "tokens"),
}
TOKENS, CLASSES = 100, 10
ROUNDS = 4  # with which methods get past their warm-up; some also divide the epochs of a round


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--check", metavar="NAME", help="try a model of your own, such as mine")
    parser.add_argument(
        "--shape",
        metavar="SIZES",
        help="with --check: the shape of a sample, such as 1,28,28 for images, 128,6 for series",
    )
    parser.add_argument(
        "--targets",
        choices=TARGETS,
        help="with --check: what it predicts, a label of a sample if this is left out; numbers, "
        "truths (truth values), tokens (the next one at each step), or steps (a number for each)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the table, or how a model of one's own was tried."""
    given = {key: getattr(options, key) for key in ("shape", "targets")}
    asked = " ".join(f"--{key} {value}" for key, value in given.items() if value)
    if asked and options.check is None:
        raise RunError(f"{asked}: is for --check; name a model there")
    if options.markdown and options.check is not None:
        raise RunError("--markdown prints all models; leave out --check")
    if options.check is None:
        show(COLUMNS, rows(), options.markdown)
        return 0
    from fedapps import models
    from fedapps.core import listed
    from fedapps.models import own

    try:
        takes = models.spec_of(options.check).takes
    except ValueError as error:
        raise RunError(str(error)) from error
    shape = listed.shape(options.shape, "--shape") if options.shape else ()
    targets = options.targets or "labels"
    able = TARGETS[targets]
    kinds = [kind for kind in takes if kind in able and len(shape) in (0, len(SHAPES[kind]))]
    if not kinds:
        needs = f"; {targets} are for {', '.join(able)}" * bool(options.targets)
        raise RunError(f"{asked}: {options.check} takes {', '.join(takes)}{needs}")
    for kind in kinds:
        try:
            for line in tried(options.check, kind, shape or SHAPES[kind], targets):
                print(line)
        except RunError as error:
            if error.__cause__ is None or takes != own.KINDS:  # not an error of the author's code
                raise
            likely = "tables", "images", "tokens", "series"
            other = next(one for one in likely if one in able and one != kind)
            cure = f'if it takes no {kind}, say what it takes, such as takes = "{other}"'
            raise RunError(f"{error}; {cure}") from error
    return 0


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for each model."""
    from fedapps import models
    from fedapps.data.spec import WHOLE, Spec
    from fedapps.models import own
    from fedapps.models.grouping import keys_by_layer

    def described(name: str) -> tuple[str, ...]:
        spec = models.spec_of(name)
        kind = next(kind for kind in SHAPES if kind in spec.takes)
        if kind == "tokens":
            given = Spec(SHAPES[kind], WHOLE, TOKENS)
        else:
            given = Spec(SHAPES[kind], image=kind == "images")
        model = models.build(name, given, CLASSES, seed=0)
        count = sum(parameter.numel() for parameter in model.parameters())
        return ", ".join(spec.takes), ", ".join(keys_by_layer(model)), f"{count:,}"

    yield from ((name, *described(name)) for name in models.MODELS)
    for name in own.names():
        try:
            yield (name, *described(name))
        except (RunError, ValueError) as error:  # the others are still of interest
            yield name, "", str(error), ""


def tried(name: str, kind: str, shape: tuple[int, ...], targets: str) -> Iterator[str]:
    """Train rounds of every method on random samples; yield a line for each.

    A method that cannot train the model says why. Raises `RunError` if the model cannot be built,
    or cannot train.
    """
    from fedapps.core import config, registry
    from fedapps.core.files import write_npz
    from fedapps.models import own
    from fedapps.models.layers import UNCUT
    from fedapps.models.training_pass import check_training
    from fedapps.split.strategy import SplitStrategy
    from fedapps.training.workspace import Workspace

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.npz"
        write_npz(path, _samples(kind, shape, targets))
        keys = f'dataset="{path}" runs-dir="{folder}" device="cpu" partitioner="iid" num-clients=2'
        keys += f" min-samples=2 fraction-train=1.0 local-epochs=2 num-rounds={ROUNDS}"
        keys += f' finetune-epochs=1 model="{name}"'
        space = Workspace(config.read(config.parse([keys])))
        inputs = space.dataset.inputs
        check_training(name, space.model, inputs)
        about = space.layout.parameters, space.task.has_classes
        for odd in own.oddities(space.model, inputs, *about):
            if isinstance(odd, RunError):
                raise RunError(f'model = "{name}": {odd}') from odd
            yield f"{name}: {odd}"
        if not space.layout.can_be_cut:
            yield f"{name}: {UNCUT}; that is slower where layers are frozen"
        for method in registry.names():
            if issubclass(registry.strategy_class(method), SplitStrategy):
                continue
            try:
                moved = _trained(config.read(config.parse([keys, f'strategy="{method}"'])))
            except RunError as error:
                yield f"{name}: {method}: {error}"
            except Exception as error:  # whatever the author's code does with the method's calls
                yield f"{name}: {method}: fails: {named(error)}"
            else:
                layers = ", ".join(moved) or "layers that stay on clients"
                yield f"{name}: {method} learns {kind} {list(shape)} with {layers}"


def _trained(settings: "Settings") -> tuple[str, ...]:
    """Train rounds of a method; return the layers of the shared model that have changed."""
    from fedapps.core import log, registry
    from fedapps.engine.rounds import Rounds
    from fedapps.method import rehearse
    from fedapps.training.workspace import Workspace

    strategy = registry.strategy_class(settings.strategy)
    with log.shown_by(logging.NullHandler()):  # lines about a run of few rounds
        Rounds(strategy(Workspace(settings)))  # as a run does: checks that they fit
        made = rehearse(strategy, registry.client_class(settings.strategy), settings)
        before = {key: value.copy() for key, value in made.strategy.arrays.items()}
        made.rounds(settings.num_rounds)
        made.evaluate(client=0)
    now = made.strategy.arrays
    return made.layout.layers_of(key for key, value in now.items() if (value != before[key]).any())


def _samples(kind: str, shape: tuple[int, ...], targets: str) -> "dict[str, np.ndarray]":
    """Return random samples with random targets, as arrays of an .npz file."""
    import numpy as np

    draws = np.random.default_rng(0)
    *sides, channels = (*shape[1:], shape[0]) if kind == "images" else shape
    name = "images" if kind == "images" else "inputs"
    found: dict[str, np.ndarray] = {}
    for part, size in (("train", 40), ("test", 20)):
        values = draws.integers(TOKENS, size=(size, *sides, channels))
        types = {"images": np.uint8, "tokens": np.int64}
        found[f"{part}_{name}"] = values.astype(types.get(kind, np.float32))
        found[f"{part}_{'labels' if kind == 'images' else 'targets'}"] = {
            "labels": np.arange(size) % CLASSES,
            "numbers": draws.normal(size=size),
            "truths": draws.random((size, CLASSES)) < 0.5,
            "tokens": draws.integers(TOKENS, size=(size, shape[0])),
            "steps": draws.normal(size=(size, shape[0], 1)),
        }[targets]
    return found
