"""Split learning: Gupta, Raskar, Distributed learning of deep neural network over multiple agents,
Journal of Network and Computer Applications 2018."""

from collections.abc import Iterator, Mapping

from fedapps.method import Arrays, ClientUpdate, MethodSettings
from fedapps.split import BatchGradients, Cut, Session, Smashed, SplitStrategy


class Settings(MethodSettings, frozen=True):
    """Split learning's own keys."""

    cut: Cut


class SplitLearning(SplitStrategy):
    """Clients train one after another (ascending); each hands its layers on to the next one.

    Symbols: K of N `num-clients` `fraction-train` (in the paper, all), E `local-epochs`,
    B `batch-size`, eta `lr`; layers 1..`cut` are on the clients. The clients' side is in
    fedapps/split/client.py.
    The code released with SplitFed draws a new order in each round. In ours, the model of a round
    is always that of the selected client with the highest number, which was trained last.
    The layers are handed on through the server, on the channel. If a client fails, the next one
    starts from the layers that the failed client had received.
    A newcomer gets the whole model, and fine-tunes it, as all clients do.
    """

    citation = "Gupta, Raskar 2018"
    exchanges = "first layers, features"
    relays = True
    options: Settings

    def serve(self, round_: int, session: Session) -> None:
        """Let one client after another train its E epochs with the server."""
        names = self.layout.names[: self.cut(0)]
        self.client_layers: Arrays = {k: self.arrays[k] for k in self.layout.shared(names)}
        for client in session.tokens:
            for wave in session.waves([client], relay=self.client_layers):
                session.send(self.step(round_, wave))
            self.client_layers = session.relayed.pop(client, self.client_layers)

    def together(self, seconds: Mapping[int, float]) -> float:
        """The clients take turns."""
        return sum(seconds.values())

    def step(self, round_: int, wave: list[Smashed]) -> BatchGradients:
        """Take a step on one batch of the client whose turn it is."""
        gradients = {s.client: self.part.backward(s) for s in wave}
        self.part.step()
        return gradients

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average nothing: the model is the last client's layers and the server's layers."""
        for _ in updates:  # each update must be read, so that its figures are counted
            continue
        return self.client_layers | self.part.arrays()
