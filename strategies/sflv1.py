"""SplitFed v1: Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from fedapps.method import Arrays, ClientUpdate, Plan, doc, replace, weighted_mean
from fedapps.split import (
    BatchGradients,
    Cut,
    OversampleSettings,
    ServerPart,
    Smashed,
    SplitStrategy,
)


class Settings(OversampleSettings, frozen=True):
    """SplitFed v1's own keys."""

    cut: Cut
    sync: Annotated[
        Literal["iteration", "round"],
        doc("server parts take the mean gradient in each step, or are averaged after the round"),
    ]


class SFLv1(SplitStrategy):
    """The server has a part for each client, all in parallel; client parts are averaged with n_k.

    Symbols: K of N `num-clients` `fraction-train`, rounds `num-rounds`, E `local-epochs`,
    B `batch-size`, eta `lr`; layers 1..`cut` are on the clients. The clients' side is in
    fedapps/split/client.py.
    With sync "iteration" (as the FedFC paper describes it) the server parts stay equal, so one
    part stands for all. It takes a step with the mean gradient of all clients that sent a batch in
    this iteration, a plain one (SplitFed weights them with n_k). Only its BatchNorm statistics
    differ from those of separate parts, because it sees the batches of all clients.
    With "round" the whole is FedAvg, as in SplitFed's released code, whose means are plain.
    A newcomer gets the whole model, and fine-tunes it, as all clients do.
    """

    citation = "Thapa et al. 2022"
    exchanges = "first layers, features"
    options: Settings

    def prepare(self, round_: int, plans: Mapping[int, Plan]) -> None:
        """Make a server part for each client, or the one that stands for all."""
        if self.options.sync == "iteration":
            return super().prepare(round_, plans)
        layers = self.server_layers(self.cut(0))
        self.own = {client: self.server_part(round_, layers) for client in plans}

    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Take a step with each client's server part, or with the one that stands for all."""
        if self.options.sync == "round":
            gradients = {s.client: self.own[s.client].backward(s) for s in wave}
            for client in gradients:
                self.own[client].step()
            return gradients
        gradients = {s.client: self.part.backward(s) for s in wave}
        if learned := sum(not answer.rejection for answer in gradients.values()):
            self.part.scale(1 / learned)
            self.part.step(batches=learned)
        return gradients

    def part_of(self, client: int) -> ServerPart:
        """Return the client's own server part, or the one that stands for all."""
        return self.part if self.options.sync == "iteration" else self.own[client]

    def parts(self) -> list[ServerPart]:
        """Return the server parts that were trained."""
        return [self.part] if self.options.sync == "iteration" else [*self.own.values()]

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average client parts with n_k; if there are several server parts, average these, too."""
        if self.options.sync == "round":
            return weighted_mean(self.whole(updates))[0]
        return super().aggregate(round_, updates)

    def whole(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Yield each update with the client's server part added to its layers."""
        for update in updates:
            part = self.own[update.client]
            yield replace(update, arrays={**update.arrays, **part.arrays()})
