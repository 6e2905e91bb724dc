"""FedCMD: Chen et al., Contrastive Cloud-Edge Model Decoupling for Personalized FL."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import numpy as np
from torch import nn

from fedapps.config import Fraction, MethodSettings, doc
from fedapps.config import Settings as RunSettings
from fedapps.errors import RunError
from fedapps.layers import Arrays, Slice
from fedapps.messages import ClientUpdate
from fedapps.plan import Plan
from fedapps.warmup import WarmUp, rounds_of
from fedapps.workspace import Workspace


class Settings(MethodSettings, frozen=True):
    """FedCMD's own keys."""

    selection_fraction: Annotated[
        Fraction, doc("rho: share of the rounds in which clients vote for the personal layer")
    ]
    candidates: Annotated[
        Literal["fc", "all"], doc("layers to vote for: fully connected ones, or all but the first")
    ]
    label_encoding: Annotated[
        Literal["index", "onehot"], doc("labels as numbers in [0, 1], or as one-hot vectors")
    ]
    weighting: Annotated[
        Literal["cosine", "uniform"],
        doc("mix layers after the personal one by its similarity, or average them"),
    ]
    layer: Annotated[
        str, doc('fixed personal layers from round 1, as fc1,fc2, without votes; "": vote')
    ]
    other_layer: Annotated[str, doc("with a fixed layer: that of the clients in other-clients")]
    other_clients: Annotated[str, doc("clients with another fixed layer, as 3,7,12")]


class FedCMD(WarmUp):
    """Phase 1: FedAvg, and clients vote for one layer by feature distribution transfer (Eq. 6).
    Phase 2: that layer l* is personal, and the layers after it are mixed for each client.

    With `weighting = cosine` clients upload l* for the similarity alone (if layers follow it).
    A fixed `layer` (Tables I-IV) is personal from round 1 and the rest is averaged (`uniform`).
    State: `chosen` [K_p] and `layer` [1] hold numbers of layers (-1: none yet), `last/<key>` the
    l* that each client sent last, `round/<key>` what the clients `round/clients` of the latest
    round sent of the layers after it.
    """

    citation = "Chen et al."
    exchanges = "all but one layer"
    sends_its_model = False

    def __init__(self, workspace: Workspace, settings: RunSettings | None = None) -> None:
        self.ballots: list[str] = []  # of this round
        self.latest: list[ClientUpdate] = []
        super().__init__(workspace, settings)
        self.state["chosen"] = np.full(self.warmup, -1)
        self.state["layer"] = np.array([-1])
        self.others = self.other_clients()
        if not self.warmup and not self.options.layer:
            raise RunError(
                "fedcmd.selection-fraction = 0: no round to vote in; raise it, or name a "
                "fedcmd.layer"
            )

    # Phase 1 ------------------------------------------------------------------------------

    def warmup_rounds(self) -> int:
        """K_p = rho T, at least one round (our choice); none with a fixed layer."""
        rho = self.options.selection_fraction
        if self.options.layer or not rho:
            return 0
        return max(1, rounds_of(rho, self.settings.num_rounds))

    def warmup_plan(self, round_: int, client: int) -> Plan:
        """FedAvg's plan; the client also sends a score s_l of every layer but the first."""
        plan = super().warmup_plan(round_, client)
        return msgspec.structs.replace(plan, sends={"scores/s": (len(self.layout.names) - 1,)})

    def note(self, round_: int, update: ClientUpdate) -> None:
        """Phase 1: count a vote for the smallest score; phase 2: keep what the mixtures need."""
        if round_ <= self.warmup:
            names = self.layout.names
            scores = dict(zip(names[1:], update.further["scores/s"].tolist(), strict=True))
            for name in self.candidates():
                self.report.event(round_, update.client, "score", f"{name} {scores[name]:.6g}")
            # a tie goes to the layer nearer the output
            vote = min(self.candidates()[::-1], key=lambda name: scores[name])
            self.report.event(round_, update.client, "vote", vote)
            self.ballots.append(vote)
        elif self.mixed:
            self.last.keep(update.client, {key: update.arrays[key] for key in self.phi_keys})
            self.latest.append(update)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Mean with weights n_i of all but l*; in phase 1 the round's most voted layer is noted."""
        self.ballots, self.latest = [], []
        new = super().aggregate(round_, updates)
        if round_ <= self.warmup:
            winner = most(self.ballots, self.layout.names)
            self.report.event(round_, "server", "chosen", winner)
            self.state["chosen"][round_ - 1] = self.layout.names.index(winner)
        elif self.mixed and self.latest:
            self.state["round/clients"] = np.array([update.client for update in self.latest])
            for key in self.after_keys:
                self.state[f"round/{key}"] = np.stack([u.arrays[key] for u in self.latest])
        return {key: value for key, value in new.items() if key not in self.phi_keys}

    def end_warmup(self) -> None:
        """l* is the layer chosen most often; the same for all clients from now on."""
        if not self.warmup:
            return
        names = self.layout.names
        winner = most([names[i] for i in self.state["chosen"]], names)
        self.report.event(self.warmup, "server", "personal-layer", winner)
        self.state["layer"][0] = names.index(winner)
        self.last.start({k: self.arrays[k] for k in self.phi_keys}, self.settings.num_clients)

    def candidates(self) -> Slice:
        """Layers with parameters but the first; `fc`: fully connected ones only."""
        layers = [(name, self.workspace.model.get_submodule(name)) for name in self.layout.names]
        fc = self.options.candidates == "fc"
        return tuple(
            name
            for name, layer in layers[1:]
            if any(True for _ in layer.parameters())
            and (not fc or any(isinstance(module, nn.Linear) for module in layer.modules()))
        )

    # Phase 2 ------------------------------------------------------------------------------

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train everything, exchange all but the personal layer; show that to the server."""
        names, personal = self.layout.names, self.personal(client)
        shared = tuple(name for name in names if name not in personal)
        plan = self.exchange(round_, shared, self.stage(round_, names))
        return msgspec.structs.replace(plan, upload=names, keep=personal) if self.mixed else plan

    def personal(self, client: int) -> Slice:
        """The personal layers of a client: l*, or its fixed ones."""
        if not self.options.layer:
            return (self.layout.names[self.state["layer"][0]],)
        key = "other_layer" if client in self.others else "layer"
        return self.layout.named(getattr(self.options, key), f"fedcmd.{key.replace('_', '-')}")

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """omega_i = sum_j Phi_ij omega_j / sum_j Phi_ij after l*, over the latest round's j."""
        arrays = super().download(round_, client, plan)
        if round_ <= self.warmup or "round/clients" not in self.state:
            return arrays
        weights = self.similarities(client)
        if not weights.sum():
            return arrays
        weights /= weights.sum()
        return arrays | {
            key: np.tensordot(weights, self.state[f"round/{key}"], 1).astype(np.float32)
            for key in self.after_keys
        }

    def similarities(self, client: int) -> np.ndarray:
        """Phi_ij = cos(phi_i, phi_j) for the latest round's clients j, negative ones as 0.

        All 0 for a client whose phi was never seen: it gets the mean with weights n_i.
        """
        clients = self.state["round/clients"]
        if not self.state["trained"][client]:
            return np.zeros(len(clients))
        mine = self.phi(client)
        return np.array([1.0 if j == client else cosine(mine, self.phi(j)) for j in clients])

    def phi(self, client: int) -> np.ndarray:
        """Weights and biases of l* as a client sent them last, flattened (float64)."""
        keys = [key for key in self.phi_keys if key in self.layout.parameters]
        arrays = self.last.of(client, keys).values()
        return np.concatenate([array.astype(np.float64).ravel() for array in arrays])

    @property
    def mixed(self) -> bool:
        """Whether layers after l* are mixed for each client."""
        return bool(self.options.weighting == "cosine" and self.after_keys)

    @property
    def phi_keys(self) -> tuple[str, ...]:
        """Entries of l* that travel once or for the similarity; none while it is not chosen."""
        number = int(self.state["layer"][0])
        return self.layout.shared((self.layout.names[number],)) if number >= 0 else ()

    @property
    def after_keys(self) -> tuple[str, ...]:
        """Entries of the layers after l* that travel; none while it is not chosen."""
        number = int(self.state["layer"][0])
        return self.layout.shared(self.layout.names[number + 1 :]) if number >= 0 else ()

    def other_clients(self) -> set[int]:
        """Read `other-clients` and `other-layer`."""
        text, count = self.options.other_clients, self.settings.num_clients
        if bool(text) != bool(self.options.other_layer) or (text and not self.options.layer):
            raise RunError(
                "fedcmd.other-clients and fedcmd.other-layer go together, and with fedcmd.layer"
            )
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not all(word.isdigit() and int(word) < count for word in words):
            raise RunError(
                f'fedcmd.other-clients = "{text}": must be clients from 0 to {count - 1}, as 3,7,12'
            )
        return {int(word) for word in words}


def most(votes: list[str], names: Slice) -> str:
    """Return the most frequent layer; a tie goes to the layer nearer the output."""
    counts = Counter(votes)
    return max(counts, key=lambda name: (counts[name], names.index(name)))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return <a, b> / (||a|| ||b|| + 1e-8), at least 0 (our clamp)."""
    return max(0.0, float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-8)))
