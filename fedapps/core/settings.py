"""All keys of a run: types, ranges and meanings. Their defaults are in pyproject.toml only."""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fedapps.core import listed, registry
from fedapps.core.data_settings import DataSettings
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.schema import (
    AtLeastZero,
    BelowOne,
    Count,
    Fraction,
    MethodSettings,
    NonNegative,
    Positive,
    Share,
    doc,
)


class Settings(DataSettings, frozen=True):
    """All general keys of a run. Field `num_clients` is key `num-clients`."""

    model: Annotated[str, doc("the model; `fedapps models` lists them with their layers")]
    head_layers: Annotated[Count, doc("number of last layers that form the head")]
    initial_model: Annotated[
        str,
        doc('.safetensors file, absolute or with `~`, with the first weights; "": from the seed'),
    ]
    adapter_rank: Annotated[
        NonNegative, doc("rank r of the adapters that are trained instead of the body; 0: none")
    ]
    adapter_alpha: Annotated[Positive, doc("scale of adapters: W x + (alpha/r) B A x")]
    adapter_layers: Annotated[str, doc('layers with adapters: fc1,fc2; "": all but the head')]
    num_rounds: Annotated[Count, doc("number T of rounds")]
    fraction_train: Annotated[Share, doc("share r of the clients that train in a round")]
    local_epochs: Annotated[Count, doc("epochs E of local training in a round")]
    batch_size: Annotated[Count, doc("number B of samples in a batch")]
    optimizer: Annotated[
        Literal["sgd", "adam", "adamw"],
        doc("optimizer of local training; adam, adamw: beta1 0.9, beta2 0.999, eps 1e-8"),
    ]
    lr: Annotated[Positive, doc("learning rate")]
    lr_schedule: Annotated[
        Literal["constant", "step", "cosine"],
        doc("step: lr/10 after T/2 rounds, lr/100 after 3T/4; cosine: falls towards 0"),
    ]
    momentum: Annotated[BelowOne, doc("momentum (sgd)")]
    weight_decay: Annotated[
        AtLeastZero, doc("weight decay; sgd, adam: part of the gradient; adamw: decoupled")
    ]
    prox_mu: Annotated[AtLeastZero, doc("weight mu of the proximal term (mu/2)||w - w_t||^2")]
    clip_percentile: Annotated[
        float,
        Meta(ge=0, le=100),
        doc("clip gradients at this percentile of the client's gradient norms so far; 100: off"),
    ]
    max_norm: Annotated[AtLeastZero, doc("clip gradients to at most this norm; 0: no limit")]
    clip_mode: Annotated[
        Literal["batch", "sample"], doc("clip the gradient of the batch, or that of each sample")
    ]
    clip_history: Annotated[
        Count, doc("number of gradient norms that a client keeps for clip-percentile")
    ]
    augment: Annotated[
        Literal["none", "crop-flip"], doc("crop-flip: pad by 4 pixels, crop and flip at random")
    ]
    bn_stats: Annotated[
        Literal["shared", "local", "batch"],
        doc("BatchNorm statistics; shared: they travel; local: they stay; batch: there are none"),
    ]
    bn_local: Annotated[bool, doc("keep BatchNorms on the client, including their parameters")]
    seed: Annotated[int, Meta(ge=0, lt=2**32), doc("seed of all random numbers")]
    evaluate_every: Annotated[
        NonNegative, doc("evaluate after every n-th round; 0: only after the last round")
    ]
    evaluate_rounds: Annotated[
        str,
        doc("rounds to evaluate besides those that are due: 190-199; without personalization"),
    ]
    evaluate_on: Annotated[
        Literal["test", "validation"],
        doc("samples that clients are scored on; use validation to choose settings"),
    ]
    evaluate_clients: Annotated[
        NonNegative, doc("number of clients that are evaluated, always the same ones; 0: all")
    ]
    finetune_epochs: Annotated[
        NonNegative, doc("epochs F of fine-tuning before the personalized score")
    ]
    finetune_lr: Annotated[AtLeastZero, doc("learning rate of fine-tuning; 0: the same as `lr`")]
    finetune_part: Annotated[Literal["full", "head", "body"], doc("layers that fine-tuning trains")]
    server_data: Annotated[
        Fraction, doc("share of all training samples on which the server trains after each round")
    ]
    server_part: Annotated[
        Literal["full", "body"], doc("layers that the server trains on these samples")
    ]
    score_last: Annotated[
        bool, doc("also score each client's whole model as its last local training left it")
    ]
    score_without_head: Annotated[
        bool, doc("also score the body alone, by the nearest class mean (some methods always do)")
    ]
    devices: Annotated[
        str,
        doc('speeds of the clients: a .toml file, lognormal or desktops; "": no virtual time'),
    ]
    deadline: Annotated[
        AtLeastZero,
        doc("virtual seconds after which a round ends (real: round-timeout); 0: it waits for all"),
    ]
    late: Annotated[
        Literal["drop", "later"],
        doc("an update after the end of its round; later: it counts in a later round"),
    ]
    over_selection: Annotated[
        AtLeastZero, doc("share of clients asked beyond the cohort; the first to answer count")
    ]
    dropout: Annotated[
        BelowOne, doc("probability that a selected client does not answer in a round")
    ]
    round_mode: Annotated[
        Literal["sync", "async"],
        doc("async: a new model whenever `buffer` updates have come; the other clients go on"),
    ]
    buffer: Annotated[
        NonNegative, doc("number of updates that make a new model (async); 0: half the cohort")
    ]
    server_optimizer: Annotated[
        Literal["none", "momentum", "adam", "adagrad", "yogi"],
        doc("optimizer that takes the mean of the clients' updates as its gradient"),
    ]
    server_lr: Annotated[
        AtLeastZero, doc("its learning rate; 0: 1 for momentum, 0.01 for the others")
    ]
    server_beta1: Annotated[BelowOne, doc("its beta1; for momentum, the momentum beta")]
    server_beta2: Annotated[BelowOne, doc("beta2 of adam and yogi")]
    server_tau: Annotated[Positive, doc("tau of adam, adagrad and yogi, added to the denominator")]
    aggregation: Annotated[
        Literal[
            "mean", "median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "clipped"
        ],
        doc("how the server averages updates; all but mean limit what attackers can do"),
    ]
    robust_share: Annotated[
        float,
        Meta(ge=0, lt=0.5),
        doc("share of attackers among a round's clients; for trimmed-mean, krum and multi-krum"),
    ]
    clip_radius: Annotated[
        AtLeastZero, doc("clipped: radius around the last step; 0: the median distance from it")
    ]
    attack: Annotated[
        Literal["none", "sign-flip", "label-flip", "scaled", "alie", "inflated-count"],
        doc("what attackers do in a simulation, to see what it does to the others"),
    ]
    attackers: Annotated[
        BelowOne, doc("share of the clients that are attackers; they are not scored")
    ]
    attack_scale: Annotated[
        Positive, doc("factor of sign-flip and scaled on the update, of inflated-count on n_i")
    ]
    attack_z: Annotated[
        AtLeastZero, doc("alie: standard deviations from the mean; 0: those of the paper's formula")
    ]
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        doc("processor on which clients compute; auto: a CUDA GPU if the process sees one"),
    ]
    threads: Annotated[
        int,
        Meta(ge=1, le=64),
        doc("PyTorch threads per process; to repeat a run exactly, use the same number"),
    ]
    group: Annotated[
        NonNegative | Literal["auto"],
        doc(
            "number of clients that are trained and scored together; 0: one after the other; "
            "auto: by model and processor"
        ),
    ]
    cache_limit: Annotated[
        NonNegative,
        doc("MiB per process for clients' data, and as much again for outputs of frozen layers"),
    ]
    presum: Annotated[
        bool,
        doc("a SuperNode sends one mean over its clients; this changes the last digit of results"),
    ]
    secure_sum: Annotated[
        bool, doc("clients mask their updates, so that the server sees only the sum of a round")
    ]
    max_failures: Annotated[
        int,
        Meta(ge=-1),
        doc("failed clients that a round tolerates; -1: any number, as long as one succeeds"),
    ]
    max_value: Annotated[
        Positive,
        doc("largest magnitude of a value in an update; an update that exceeds it is refused"),
    ]
    max_samples: Annotated[
        Count, doc("a device that reports more training or test samples than this is left out")
    ]
    round_timeout: Annotated[
        Positive,
        doc("seconds to wait for the replies of a round, and before it for enough SuperNodes"),
    ]
    channel_address: Annotated[
        str, doc("host:port where the server listens for split learning; port 0: any free one")
    ]
    channel_reach: Annotated[
        str, doc('host:port that split clients connect to; "": the same as channel-address')
    ]
    channel_tls: Annotated[
        str, doc('folder with server.crt, server.key, ca.crt for the channel; "": no TLS')
    ]
    channel_nodes: Annotated[
        NonNegative,
        doc("SuperNodes on which split clients train; 0: one in a simulation, otherwise all"),
    ]
    join_timeout: Annotated[Positive, doc("seconds to wait for a split client to join a round")]
    step_timeout: Annotated[Positive, doc("seconds to wait for a split client's next batch")]
    min_available: Annotated[Count, doc("SuperNodes that must be connected before each round")]
    runs_dir: Annotated[str, doc("folder of the run directories, absolute or with `~`")]
    run_name: Annotated[str, doc('name of the run directory; "": strategy, data, seed and time')]
    federation: Annotated[
        str, doc('folder that records models and epsilon of all runs of a federation; "": none')
    ]
    checkpoint_every: Annotated[
        NonNegative, doc("checkpoint after every n-th round, to resume a killed run; 0: never")
    ]
    resume: Annotated[
        str, doc("run directory to resume, or latest: the newest unfinished one with these keys")
    ]
    keep_best: Annotated[
        bool, doc("also keep the model of the round that is best on validation samples, in best/")
    ]
    patience: Annotated[
        NonNegative,
        doc("end after this many validation scores in a row without improvement; 0: never"),
    ]
    loggers: Annotated[
        str, doc('tensorboard, mlflow, wandb, or several: tensorboard,wandb; "": none')
    ]
    metrics_port: Annotated[
        int,
        Meta(ge=0, lt=2**16),
        doc("port of 127.0.0.1 on which the server gives Prometheus the run's figures; 0: none"),
    ]
    dp: PrivacySettings
    method: Annotated[Any, doc("settings of the method, from its own table")] = None
    flat: Annotated[tuple[tuple[str, Any], ...], doc("the run-config that it was read from")] = ()

    def of(self, strategy: str) -> "Settings":
        """Return these settings with the method settings of another strategy (a base method)."""
        method = registry.method_settings(strategy, dict(self.flat))
        return msgspec.structs.replace(self, strategy=strategy, method=method)

    @property
    def logger_names(self) -> tuple[str, ...]:
        """Names of the additional loggers; raises `RunError`."""
        return listed.loggers(self.loggers)

    @property
    def finetune_rate(self) -> float:
        """Learning rate of personalization."""
        return self.finetune_lr or self.lr

    @property
    def further_rounds(self) -> frozenset[int]:
        """The rounds in `evaluate-rounds` that the run has; raises `RunError`."""
        return listed.rounds(self.evaluate_rounds, self.num_rounds)

    def round_lr(self, round_: int) -> float:
        """Learning rate in a round (from 1); `step` lowers it after T//2 and 3T//4 rounds."""
        done, total = round_ - 1, self.num_rounds
        if self.lr_schedule == "step":
            steps = max(1, total // 2), max(1, 3 * total // 4)
            return self.lr * 0.1 ** sum(done >= step for step in steps)
        if self.lr_schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * done / total))
        return self.lr


# General tables: the fields of Settings that hold keys of their own, such as `dp.clip-norm`.
TABLES: dict[str, type[MethodSettings]] = {
    field.encode_name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, MethodSettings)
}
