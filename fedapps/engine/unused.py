"""Find keys that the user has set and that have no effect in the run."""

from collections.abc import Iterator

from fedapps.core import changes
from fedapps.core.config import LAST, defaults
from fedapps.core.draws import sample_size
from fedapps.core.paths import absolute
from fedapps.core.schema import literal
from fedapps.core.scored_rounds import is_due
from fedapps.core.settings import Settings
from fedapps.data import Dataset, Form
from fedapps.data.forms import is_own
from fedapps.data.forms.hub import is_saved
from fedapps.data.spec import FILLS
from fedapps.engine.checks import replaced
from fedapps.method.flower import BaseStrategy
from fedapps.method.robust import RULES

OF_DEVICES = ("input-shape", "num-classes", "class-names", "client-state", "max-samples")
OF_CHANNEL = (
    "channel-address", "channel-nodes", "channel-reach", "channel-tls", "join-timeout",
    "step-timeout",
)  # fmt: skip
OF_FILES = (
    "target-column",
    "client-column",
    "columns",
    "missing",
    "window",
    "window-step",
    "text-length",
)


def notes(strategy: BaseStrategy) -> list[str]:
    """Return one line per key that differs from its default and that nothing reads."""
    settings, known = strategy.settings, defaults()
    flat = dict(settings.flat)
    return [
        f"{key} = {literal(flat[key])} has no effect {why}"
        for key, why in told(strategy)
        if flat.get(key, known[key]) != known[key]
    ]


def told(strategy: BaseStrategy) -> Iterator[tuple[str, str]]:
    """Yield each key that nothing reads in a run, and the reason as the end of a sentence."""
    yield from _general(strategy.settings)
    yield from _of_data(strategy.settings, strategy.workspace.dataset)
    yield from _of_norms(strategy)
    if not strategy.has_channel:
        why = f"on {strategy.settings.strategy}, whose clients need no channel"
        yield from ((key, why) for key in OF_CHANNEL)
    clients, share = len(strategy.workspace.population.training), strategy.settings.fraction_train
    if sample_size(clients, share) == clients:
        yield "over-selection", f"with fraction-train = {share:g}, which asks all clients"
    plan = strategy.plan(strategy.settings.num_rounds, strategy.workspace.population.some_client)
    if not (plan.upload or plan.sends):
        why = f"on {strategy.settings.strategy}, whose clients upload nothing"
        keys = ["server-optimizer", "aggregation"]
        if not replaced(strategy, ["aggregate", "train_nodes"]):
            keys += ["attack", "presum"]  # otherwise `presum` is refused
        elif strategy.settings.attack != "label-flip":  # which changes features on a channel, too
            keys.append("attack")
        yield from ((key, why) for key in keys)
    if strategy.settings.attack == "inflated-count" and (
        why := _where_counts_are_no_weights(strategy)
    ):
        yield from ((key, why) for key in ("attack", "attack-scale"))
    if not strategy.settings.finetune_epochs and not replaced(strategy, ["finetuning"]):
        yield from ((key, "with finetune-epochs = 0") for key in ("finetune-lr", "finetune-part"))
    yield from ((key, f"on {strategy.settings.strategy}") for key in strategy.unused)


def _of_norms(strategy: BaseStrategy) -> Iterator[tuple[str, str]]:
    """Yield the keys about BatchNorms without effect; where these stay, statistics do, too."""
    s = strategy.settings
    if not strategy.layout.norms:
        what = "whose BatchNorms are frozen" if s.adapter_rank else "which has no BatchNorm"
        yield from ((key, f'with model = "{s.model}", {what}') for key in ("bn-local", "bn-stats"))
    elif s.bn_stats == "batch":
        return
    elif "bn-local" in strategy.unused:
        yield "bn-stats", f"on {s.strategy}, whose BatchNorms never travel"
    elif s.bn_local:
        yield "bn-stats", "with bn-local = true"


def _of_data(s: Settings, data: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the keys about own files that these data have no use for."""
    own = is_own(s.dataset)
    if own or s.on_devices:
        if not s.window:
            yield "window-step", "with window = 0"
            if s.on_devices:  # it is one client
                yield "client-column", 'with dataset = "device" and window = 0'
    else:
        yield from ((key, f'with dataset = "{s.dataset}"') for key in OF_FILES)
    if s.on_devices and s.text_length and s.shape != (s.text_length,):
        yield "input-shape", f"with text-length = {s.text_length}, which says it"
    if (data.columns or s.on_devices) and Form.of(s).goes_on:
        yield "target-column", 'with task = "tokens" and text-length: the target is the next token'
    if not own or data.columns:  # a table has a use for all of them
        return
    path = absolute(s.dataset, "dataset")
    keys = ["columns", "client-column", "target-column"]
    if path.is_dir():
        keys = [] if is_saved(path) else keys[:2]
    yield from ((key, "on data that are no table") for key in (*keys, "text-length"))
    if data.inputs.image or data.inputs.is_whole:
        yield "missing", "on images and tokens"
    elif s.missing not in FILLS:
        yield "missing", "on data that are no table"


def _where_counts_are_no_weights(strategy: BaseStrategy) -> str:
    """Say where an update weighs the same whatever sample count its client claims; "" if not."""
    s = strategy.settings
    if s.aggregation != "mean":
        return f'with aggregation = "{s.aggregation}", where sample counts are no weights'
    if s.dp.mode != "none":
        return f'with dp.mode = "{s.dp.mode}", where sample counts are no weights'
    if not strategy.weighs_by_count:
        return f"on {s.strategy}, where sample counts are no weights"
    return ""


def _of_the_mean(s: Settings) -> Iterator[tuple[str, str]]:
    """Yield the keys of the server's mean and of attackers that other such keys leave unread."""
    read = {"none": (), "momentum": ("lr", "beta1"), "adagrad": ("lr", "beta1", "tau")}
    for key in ("lr", "beta1", "beta2", "tau"):
        if key not in read.get(s.server_optimizer, ("lr", "beta1", "beta2", "tau")):
            yield f"server-{key}", f'with server-optimizer = "{s.server_optimizer}"'
    used = RULES[s.aggregation].keys if s.aggregation in RULES else ()
    for key in dict.fromkeys(key for rule in RULES.values() for key in rule.keys):
        if key not in used:
            yield key, f'with aggregation = "{s.aggregation}"'
    if not s.attackers:
        yield "attack", "with attackers = 0"
    if s.attack not in ("sign-flip", "scaled", "inflated-count"):
        yield "attack-scale", f'with attack = "{s.attack}"'
    if s.attack != "alie":
        yield "attack-z", f'with attack = "{s.attack}"'


def _general(s: Settings) -> Iterator[tuple[str, str]]:
    """Yield general keys that have no effect because of other keys, and name these."""
    own = s.on_devices
    if own and s.split != LAST:
        yield "split", f'with dataset = "{s.dataset}"'
    if not own:
        yield from ((key, 'without dataset = "device"') for key in OF_DEVICES)
    why = 'with dataset = "device"' if own else f'with partitioner = "{s.partitioner}"'
    yield from ((key, why) for key in changes.unread(s.dataset, s.partitioner))
    if not s.unseen_clients:
        yield "few-shot", "without unseen-clients"
    if s.split == "official" and not own:
        yield "test-fraction", 'with split = "official"'
    if not (s.evaluate_every or s.resume):  # the end of an extension is evaluated, and can count
        yield "patience", "with evaluate-every = 0"
    if s.evaluate_rounds and not s.further_rounds:
        yield "evaluate-rounds", f"with num-rounds = {s.num_rounds}"
    elif all(is_due(s, round_) for round_ in s.further_rounds):
        yield "evaluate-rounds", "because these rounds are evaluated anyway"
    if not s.adapter_rank:
        yield from ((key, "with adapter-rank = 0") for key in ("adapter-alpha", "adapter-layers"))
    if s.round_mode == "sync":
        yield "buffer", 'with round-mode = "sync"'
    if s.round_mode == "async" or not (s.deadline or s.over_selection):
        yield "late", "without deadline or over-selection"
    yield from _of_the_mean(s)
    if not s.server_data:
        yield "server-part", "with server-data = 0"
    if s.clip_percentile == 100:
        yield "clip-history", "with clip-percentile = 100"
        if not s.max_norm:
            yield "clip-mode", "without clip-percentile or max-norm"
    if s.dp.by_clients:
        why = f'with dp.mode = "{s.dp.mode}", where the method selects the clients'
        yield "dp.sampling", why
    if s.dp.mode != "none" and not s.dp.adaptive:
        for key in ("target-quantile", "clip-lr", "count-noise"):
            yield f"dp.{key}", "with dp.adaptive = false"
