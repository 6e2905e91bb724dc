"""FedFC: Chung et al., Federated Feature Concatenate Method for Heterogeneous Computing in
Federated Learning, CMC 2023."""

import math
from collections.abc import Iterator, Mapping
from statistics import median_low
from typing import Annotated, Literal

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fedapps.method import (
    SERVER,
    Arrays,
    ClientUpdate,
    Count,
    Question,
    RunError,
    doc,
    replace,
    weighted_mean,
)
from fedapps.split import BatchGradients, OversampleSettings, Smashed, SplitStrategy


class Settings(OversampleSettings, frozen=True):
    """FedFC's own keys."""

    cuts: Annotated[
        str,
        doc(
            "number of layers on the clients: 4 for all; 2,4,7,10: one for each; auto: by speed; "
            '"": 4, or half of the layers if that is less'
        ),
    ]
    slowest_limit: Annotated[
        Count,
        doc(
            "with cuts auto: a client slower than this multiple of the median does not set the pace"
        ),
    ]
    statistics: Annotated[
        Literal["joined", "client"],
        doc("BatchNorms on the server normalize the joined batch, or each client's part by itself"),
    ]
    weighting: Annotated[
        Literal["plain", "samples"], doc("clients' copies of a layer count equally, or by samples")
    ]


class FedFC(SplitStrategy):
    """The server joins the features of all clients at their cuts, and trains on them at once.

    Symbols: K of N `num-clients` `fraction-train`, rounds `num-rounds`, E `local-epochs`,
    B `batch-size`, eta `lr`, c_k `cuts`.
    Algorithm 1, the clients' side, is in fedapps/split/client.py. Where the paper is silent, we
    chose these rules:

    - The loss is the mean over all joined samples.
    - A client with fewer batches waits for the next epoch, unless `oversample` is true.
    - The copies of a layer have equal weights, unless `weighting` is "samples".
    - BatchNorms on the server normalize the joined batch, unless `statistics` is "client".
    - With cuts "auto" every client reports how long its layers take; one that reports nothing gets
      the default cut. The slowest client gets the default cut, and each other client the deepest
      cut with which it is not slower than that one. A client slower than `slowest-limit` times the
      median gets fewer layers instead, so that a false report cannot slow down all others.

    The configuration that we take for the paper's has momentum 0.9, and neither BatchNorm nor
    augmentation (experiments/configs/fedfc-cifar10.toml, with a narrow VGG).
    A newcomer gets the whole model, and fine-tunes it, as all clients do.

    State: `cuts` [N], those chosen by speed (0: the default).
    """

    citation = "Chung et al. 2023"
    exchanges = "first layers, features"
    by_client = ("cuts",)
    options: Settings

    def setup(self) -> None:
        """Allocate the cuts by speed, which are not known yet."""
        self.state["cuts"] = np.zeros(self.settings.num_clients, int)
        super().setup()

    @property
    def weighs_by_count(self) -> bool:
        """Copies of a layer have equal weights, unless `weighting` is "samples"."""
        return self.options.weighting == "samples"

    @property
    def unused(self) -> tuple[str, ...]:
        """`slowest-limit` needs cuts that are chosen by speed, `statistics` BatchNorms."""
        by_speed = () if self.auto else ("fedfc.slowest-limit",)
        names = self.layout.names
        norms = () if self.layout.norms_of(names) else ("fedfc.statistics",)
        return (*super().unused, *by_speed, *norms)

    @property
    def auto(self) -> bool:
        """Whether cuts are chosen by speed."""
        return self.options.cuts.strip() == "auto"

    def cut(self, client: int) -> int:
        """Return the number of layers on a client."""
        if self.auto:
            return self.checked_cut(int(self.state["cuts"][client]))
        text = self.options.cuts.replace(" ", "")
        words = text.split(",") if text else ["0"]
        count = self.workspace.settings.num_clients  # of the run: a newcomer has no cut
        if len(words) > 1 and self.settings.dataset == "device":  # to which others can come
            words += ["0"] * (count - len(words))
        if not all(word.isdecimal() for word in words) or len(words) not in (1, count):
            raise RunError(
                f'fedfc.cuts = "{text}": must be one number, one for each of the {count} clients '
                "as 2,4,7,10, or auto"
            )
        return self.checked_cut(int(words[client % len(words)]), "cuts")

    def question(self) -> Question | None:
        """Ask for the seconds of each layer (at most `step-timeout`), if cuts are by speed."""
        most = self.settings.step_timeout
        return Question("layer-seconds", len(self.layout.names), most) if self.auto else None

    def answered(self, answers: Mapping[int, list[float]]) -> None:
        """Choose the cuts by speed."""
        most = self.options.slowest_limit
        for client, cut in deepest(answers, self.checked_cut(0), most).items():
            self.state["cuts"][client] = cut
        for client in self.clients:
            self.event(0, client, "cut", str(self.cut(client)))

    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Algorithm 2: join smashed data layer by layer; one loss, one backward pass, one step."""
        features: list[torch.Tensor] = []
        joined: list[Smashed] = []
        for layer in self.part.layers:
            held = self.layout.names[: self.layout.names.index(layer)]
            joining = [s for s in wave if self.cut(s.client) == len(held)]
            features += [s.data for s in joining]
            joined += joining
            if features and self.options.statistics == "joined":
                features = [torch.cat(features)]
            features = [self.part.run(x, [layer]) for x in features]
        if not features:
            return {}
        logits = torch.cat(features)
        if rejected := self.part.settle(logits, joined):
            return rejected | self.step(round_, [s for s in wave if s.client not in rejected])
        loss = cross_entropy(logits, torch.cat([s.labels for s in joined]))
        loss.backward()
        self.part.step()
        return {s.client: s.gradient(loss) for s in wave}

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Algorithm 3: average each layer over its trained copies, clients' and server's."""
        return weighted_mean(self.copies(updates))[0]

    def copies(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Yield the clients' layers, then the server's, layer by layer.

        A copy that was not trained is left out. With weights by samples, the weight of the server's
        copy is the number of samples that passed through it in an epoch, repeated ones included.
        """
        by_samples = self.options.weighting == "samples"
        for update in updates:
            if update.metrics["batches"]:
                yield replace(update, weight=float(update.num_examples) if by_samples else 1.0)
        for layer, passed in self.part.samples.items():
            epochs = self.settings.local_epochs
            weight = passed / epochs if by_samples else float(passed > 0)
            if weight:
                yield ClientUpdate(SERVER, self.part.arrays([layer]), passed, weight=weight)


def deepest(
    seconds: Mapping[int, list[float]], default: int, most: float = math.inf
) -> dict[int, int]:
    """Return each client's deepest cut with which it is not slower than the slowest at `default`.

    `seconds[client][l]` is how long a step through layer l (from 0) takes by itself. The time of
    the slowest is limited to `most` times the median. Each client gets at least one layer.
    """
    totals = [sum(times[:default]) for times in seconds.values()]
    limit = min(max(totals), most * median_low(totals))
    return {
        client: max([1, *(c for c in range(1, len(times)) if sum(times[:c]) <= limit)])
        for client, times in seconds.items()
    }
