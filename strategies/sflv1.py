"""SplitFed v1: Thapa et al., SplitFed: When Federated Learning Meets Split Learning, AAAI 2022."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from fedapps.aggregation import weighted_mean
from fedapps.config import doc
from fedapps.layers import Arrays
from fedapps.messages import ClientUpdate
from fedapps.split import Answers, ServerPart, Session, Smashed, SplitSettings, SplitStrategy


class Settings(SplitSettings, frozen=True):
    """SplitFed v1's own keys."""

    sync: Annotated[
        Literal["iteration", "round"],
        doc("server parts share the mean gradient of each step, or are averaged at round end"),
    ]
    oversample: Annotated[
        bool, doc("a client with fewer batches takes its own again until all have as many")
    ]


class SFLv1(SplitStrategy):
    """A server part for each client, all in parallel; client parts are averaged with n_k.

    With sync "iteration" (as the FedFC paper describes it) the server parts stay equal, so there
    is one, which steps along the mean over the wave of each client's gradient.
    """

    citation = "Thapa et al. 2022"
    exchanges = "layers up to the cut; features and gradients at each step"

    def serve(self, round_: int, session: Session) -> None:
        """Make a server part for each client, then answer."""
        self.own: dict[int, ServerPart] = {}
        if self.options.sync == "round":
            layers = self.server_layers(self.cut(0))
            self.own = {client: self.server_part(round_, layers) for client in session.shapes}
        super().serve(round_, session)

    def step(self, round_: int, wave: list[Smashed]) -> Answers:
        """Each client's data through its own server part."""
        if self.options.sync == "round":
            answers = {s.client: self.own[s.client].backward(s) for s in wave}
            for client in answers:
                self.own[client].step()
            return answers
        assert self.part is not None
        answers = {s.client: self.part.backward(s) for s in wave}
        self.part.scale(1 / len(wave))
        self.part.step()
        return answers

    def parts(self) -> list[ServerPart]:
        """The parts that were trained."""
        return [*self.own.values()] or [*super().parts()]

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average client parts with n_k, and the server parts likewise where there are several."""
        if self.options.sync == "round":
            return weighted_mean(self.whole(updates))[0]
        mean, _ = weighted_mean(updates)
        self.served()
        assert self.part is not None
        return mean | self.part.arrays()

    def whole(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Put the server part of each client beside its layers, when the round is over."""
        arrived = [*updates]
        self.served()
        for update in arrived:
            part = self.own[update.client]
            yield replace(update, arrays={**update.arrays, **part.arrays()})
