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
    """A server part for each client, all in parallel; client parts are averaged with n_k.

    Symbols: K of N `num-clients` `fraction-train`, rounds `num-rounds`, E `local-epochs`,
    B `batch-size`, eta `lr`; layers 1..`cut` are on the clients, whose side is in
    fedapps/split/client.py.
    With sync "iteration" (as the FedFC paper describes it) the server parts stay equal. One part
    therefore stands for all: it steps along the mean of the gradients of all clients that sent a
    batch in this iteration. Only its BatchNorm statistics differ from theirs: it sees each batch.
    """

    citation = "Thapa et al. 2022"
    exchanges = "first layers, features"
    options: Settings

    def cut(self, client: int) -> int:
        """The same for all."""
        return self.checked_cut(self.options.cut)

    def prepare(self, round_: int, plans: Mapping[int, Plan]) -> None:
        """Make a server part for each client, or the one that stands for all."""
        if self.options.sync == "iteration":
            return super().prepare(round_, plans)
        layers = self.server_layers(self.cut(0))
        self.own = {client: self.server_part(round_, layers) for client in plans}

    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Each client's data through its own server part."""
        if self.options.sync == "round":
            gradients = {s.client: self.own[s.client].backward(s) for s in wave}
            for client in gradients:
                self.own[client].step()
            return gradients
        gradients = {s.client: self.part.backward(s) for s in wave}
        if learned := sum(not answer.refused for answer in gradients.values()):
            self.part.scale(1 / learned)
            self.part.step(batches=learned)
        return gradients

    def part_of(self, client: int) -> ServerPart:
        """Each client has its own, or one stands for all."""
        return self.part if self.options.sync == "iteration" else self.own[client]

    def parts(self) -> list[ServerPart]:
        """The parts that were trained."""
        return [self.part] if self.options.sync == "iteration" else [*self.own.values()]

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average client parts with n_k, and the server parts likewise where there are several."""
        if self.options.sync == "round":
            return weighted_mean(self.whole(updates))[0]
        mean, _ = weighted_mean(updates)
        return mean | self.part.arrays()

    def whole(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Put the server part of each client beside its layers."""
        for update in updates:
            part = self.own[update.client]
            yield replace(update, arrays={**update.arrays, **part.arrays()})
