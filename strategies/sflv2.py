"""SplitFed v2: Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022."""

from collections.abc import Mapping
from typing import Annotated, Literal

from fedapps.method import doc, generator
from fedapps.split import (
    BatchGradients,
    Cut,
    OversampleSettings,
    Session,
    Smashed,
    SplitStrategy,
)


class Settings(OversampleSettings, frozen=True):
    """SplitFed v2's own keys."""

    cut: Cut
    order: Annotated[
        Literal["client", "batch"],
        doc("client: all epochs of one client, then of the next; batch: one batch of each in turn"),
    ]


class SFLv2(SplitStrategy):
    """The server has one part, and trains it on one client after another, in a random order.

    Symbols: K of N `num-clients` `fraction-train`, rounds `num-rounds`, E `local-epochs`,
    B `batch-size`, eta `lr`; layers 1..`cut` are on the clients. The clients' side is in
    fedapps/split/client.py.
    With `order = client` the server trains all E epochs of one client before those of the next;
    the order of the clients is drawn anew in each round. The released code does the same. The
    FedFC paper remarks that SFLv2 "only remembered the smashed data from the latest client"; we
    understand this in the same way (our choice for its tables). With `order = batch` each client
    sends one batch in every iteration, in an order that is drawn anew for each iteration. All
    clients start a round from the same client layers.
    A newcomer gets the whole model, and fine-tunes it, as all clients do.
    """

    citation = "Thapa et al. 2022"
    exchanges = "first layers, features"
    options: Settings

    def serve(self, round_: int, session: Session) -> None:
        """Let all clients send batches at the same time, or one client after another."""
        if self.options.order == "batch":
            super().serve(round_, session)
            return
        clients = [*session.tokens]
        for index in generator(self.settings.seed, "sflv2", round_).permutation(len(clients)):
            for wave in session.waves([clients[index]]):
                session.send(self.step(round_, wave))

    def together(self, seconds: Mapping[int, float]) -> float:
        """With `order = client`, the clients take turns."""
        taken = sum(seconds.values())
        return taken if self.options.order == "client" else super().together(seconds)

    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Take a step of the server part on each client's batch, in a random order."""
        gradients: BatchGradients = {}
        draws = generator(self.settings.seed, "sflv2", round_, *wave[0].step)
        for index in draws.permutation(len(wave)):
            gradients[wave[index].client] = self.part.backward(wave[index])
            self.part.step()
        return gradients
