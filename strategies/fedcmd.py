"""FedCMD: Chen et al., Towards Optimal Customized Architecture for Heterogeneous Federated Learning
with Contrastive Cloud-Edge Model Decoupling."""

from typing import Annotated, Literal

import numpy as np

from fedapps.method import (
    Arrays,
    ClientUpdate,
    EventPlot,
    KeepsLast,
    MethodSettings,
    Plan,
    RunError,
    Share,
    Slice,
    WarmUp,
    clients_named,
    doc,
    replace,
)

VOTES = EventPlot(
    "votes",
    counted="vote",
    valued="score",
    count_label="votes",
    value_label="mean score (smallest wins)",
)


class Settings(MethodSettings, frozen=True):
    """FedCMD's own keys."""

    selection_fraction: Annotated[
        Share, doc("rho: share of the rounds in which clients vote for the personal layer")
    ]
    candidates: Annotated[
        Literal["fc", "all"],
        doc("layers to vote for: all but the first; fc: of these, those with matrices as weights"),
    ]
    label_encoding: Annotated[
        Literal["index", "onehot"], doc("labels as numbers in [0, 1], or as one-hot vectors")
    ]
    scaling: Annotated[
        Literal["minmax", "none"],
        doc("inputs and outputs are scaled to [0, 1] (minmax), or compared as they are (none)"),
    ]
    weighting: Annotated[
        Literal["cosine", "uniform"],
        doc(
            "cosine: mix the layers after the personal one by its similarity; uniform: average them"
        ),
    ]
    layer: Annotated[str, doc('personal layers, fixed from round 1: fc1,fc2; "": vote')]
    other_layer: Annotated[str, doc("fixed personal layers of the clients in other-clients")]
    other_clients: Annotated[str, doc("clients to which other-layer applies: 3,7,12")]


class FedCMD(WarmUp, KeepsLast):
    """Phase 1: FedAvg; clients also vote for one layer, by feature distribution transfer (Eq. 6).
    Phase 2: this layer l* is personal, and the layers after it are mixed for each client.

    Symbols: N `num-clients`, T (K in the paper) `num-rounds`, r (gamma) `fraction-train`,
    E `local-epochs`, B `batch-size`, rho `selection-fraction`; a fixed l* is `layer`.
    With `weighting = cosine` clients send l* only for the similarity (if any layers follow l*).
    A fixed `layer` (Tables I-IV) is personal from round 1; the other layers are averaged (as with
    `uniform`). The clients in `other-clients` have `other-layer` personal instead (Fig. 2). The
    scores are computed in clients/fedcmd.py. Where the paper is silent, we chose these rules:

    - Inputs and outputs are scaled to [0, 1] (`scaling`), and labels (0..C-1) divided by C - 1.
    - The first layer is no candidate; `candidates = fc` also leaves out convolutions. Blocks of
      attention and recurrent layers stay: their weights are matrices, as those of linear layers.
    - A tie goes to the layer nearer the output.
    - The clients that do poorly with fc2, and get the classifier in Fig. 2, are the worst fifth.
    - A client that missed the latest round is compared by its last l*; a client that has never
      sent its l* gets the mean with weights n_i.
    A newcomer gets the mean of the last round and phase 1's personal layer, and fine-tunes.

    State: `votes` [rounds of phase 1 with votes so far, layers] and, if layers are mixed, `phi`
    [N, n], the last l* of each client, and `last/<key>`, the layers after l* that it sent last.
    """

    citation = "Chen et al."
    exchanges = "all but one layer"
    plots = (VOTES,)
    by_client = ("phi",)
    needs_classes = True  # z_y is made of labels
    needs_cut = True  # z_l is what layer l + 1 receives
    sends_its_model = False
    options: Settings

    def setup(self) -> None:
        """Read the fixed layers, if any."""
        super().setup()
        self.fixed = self.fixed_layers()
        self.in_eval_mode = () if self.options.layer else ("train",)

    @property
    def unused(self) -> tuple[str, ...]:
        """With fixed layers clients do not vote, and the other layers are averaged."""
        votes = ("selection-fraction", "candidates", "label-encoding", "scaling", "weighting")
        return tuple(f"fedcmd.{key}" for key in votes) if self.options.layer else ()

    def state_bytes(self) -> int:
        """The most that mixtures need: when l* is the first candidate, with all layers after it."""
        if self.options.layer:
            return 0
        names, first = self.layout.names, self.candidates()[0]
        if self.options.weighting != "cosine":
            return 0
        mixed = self.layout.shared(names[names.index(first) :])
        return self.settings.num_clients * sum(self.arrays[key].nbytes for key in mixed)

    # Phase 1 ------------------------------------------------------------------------------

    def warmup_rounds(self) -> int:
        """K_p = rho T, but at least one round (our choice); 0 with a fixed layer."""
        rounds = self.rounds_of(self.options.selection_fraction)
        return 0 if self.options.layer else max(1, rounds)

    def warmup_plan(self, round_: int, client: int) -> Plan:
        """Use FedAvg's plan; the client also sends a score s_l for every layer but the first."""
        plan = super().warmup_plan(round_, client)
        return replace(plan, sends={"scores/s": (len(self.layout.names) - 1,)})

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Phase 1: count a vote for the smallest score; phase 2: store arrays for the mixtures."""
        if round_ <= self.warmup:
            scores = dict(zip(self.layout.names[1:], update.extras["scores/s"], strict=True))
            for name in self.candidates():
                self.event(round_, update.client, "score", f"{name} {scores[name]:.6g}")
            vote = min(self.candidates()[::-1], key=lambda name: scores[name])  # ties: the later
            self.event(round_, update.client, "vote", vote)
            votes = self.votes  # has as many rounds as have voted, whatever T will be
            votes = np.pad(votes, ((0, max(0, round_ - len(votes))), (0, 0)))
            votes[round_ - 1, self.layout.names.index(vote)] += 1
            self.state["votes"] = votes
        elif self.mixes:
            self.state["phi"][update.client] = update.extras["phi/layer"]
            self.keep_last(update.client, update.arrays)

    def end_warmup(self) -> None:
        """Choose as l* the layer that most rounds chose; all clients keep it from now on."""
        if not self.warmup:
            return
        names, clients = self.layout.names, self.settings.num_clients
        for round_, votes in enumerate(self.votes, 1):
            if votes.any():
                self.event(round_, "server", "chosen", names[majority(votes)])
        self.event(self.warmup, "server", "personal-layer", names[self.chosen])
        if self.options.weighting == "cosine" and self.mixed_keys:
            personal = self.layout.shared((names[self.chosen],))
            size = sum(self.arrays[key].size for key in personal if key in self.layout.parameters)
            self.state["phi"] = np.zeros((clients, size), np.float32)
            self.start_last()

    @property
    def votes(self) -> np.ndarray:
        """How many clients voted for each layer: int [rounds, layers]."""
        return self.state.get("votes", np.zeros((0, len(self.layout.names)), int))

    @property
    def chosen(self) -> int:
        """The index of l*: the layer that most rounds of phase 1 chose.

        A round whose clients all failed has no vote; if no round has any, it is the last layer.
        """
        voted = [majority(votes) for votes in self.votes if votes.any()]
        return majority(np.bincount(np.array(voted, int), minlength=len(self.layout.names)))

    def candidates(self) -> Slice:
        """All layers but the first; `fc`: only those whose weights are matrices or vectors.

        Raises `RunError` if there are none.
        """
        most_axes = 2 if self.options.candidates == "fc" else np.inf
        shapes, keys = self.layout.shapes, self.layout.keys
        found = tuple(
            name
            for name in self.layout.names[1:]
            if max(len(shapes[key]) for key in keys[name]) <= most_axes
        )
        if not found:
            model = self.settings.model
            raise RunError(
                f'fedcmd.candidates = "fc": {model} has no layer with matrices as weights after'
                ' the first; use "all"'
            )
        return found

    # Phase 2 ------------------------------------------------------------------------------

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange all but the personal one.

        If layers are mixed, also send the personal layer, for the similarity.
        """
        names = self.layout.names
        personal = self.fixed[client] if self.fixed else (names[self.chosen],)
        shared = tuple(name for name in names if name not in personal)
        plan = self.exchange(round_, shared, self.stage(round_, names))
        sends = {"phi/layer": self.state["phi"].shape[1:]} if self.mixes else {}
        return replace(plan, sends=sends)

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """omega_i = sum_j Phi_ij omega_j / sum_j Phi_ij after l*, over the latest round's j.

        A client that has never sent phi, or whose phi is similar to no other, gets the mean with
        weights n_i.
        """
        arrays = super().download(round_, client, plan)
        if round_ > self.warmup and self.mixes and self.state["last_trained"][client]:
            weights = self.similarities(client)
            if weights.any():
                arrays |= self.mixture(weights / weights.sum())
        return arrays

    def similarities(self, client: int) -> np.ndarray:
        """Phi_ij = <phi_i, phi_j> / (||phi_i|| ||phi_j|| + 1e-8) [N], Phi_ii = 1; 0 for clients
        that were not in the latest round. Negative values become 0 (our choice)."""
        phi, trained = self.state["phi"], self.state["last_trained"]
        latest = np.flatnonzero(trained == trained.max())
        theirs, mine = phi[latest].astype(np.float64), phi[client].astype(np.float64)
        norms = np.linalg.norm(theirs, axis=1) * np.sqrt((mine**2).sum())
        weights = np.zeros(len(phi))
        weights[latest] = np.maximum(0.0, (theirs * mine).sum(1) / (norms + 1e-8))
        weights[client] = client in latest
        return weights

    @property
    def mixes(self) -> bool:
        """Whether phase 2 mixes layers by similarity; otherwise there is no `phi`."""
        return "phi" in self.state

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys of the layers after l* that travel."""
        return self.layout.shared(self.layout.names[self.chosen + 1 :])

    def fixed_layers(self) -> list[Slice]:
        """Return each client's fixed personal layers; an empty list means that clients vote."""
        o, count = self.options, self.settings.num_clients
        if bool(o.other_clients) != bool(o.other_layer) or (o.other_layer and not o.layer):
            raise RunError(
                "fedcmd.other-clients and fedcmd.other-layer go together, and with fedcmd.layer"
            )
        layers = [self.layout.named(o.layer, "fedcmd.layer")] * count if o.layer else []
        for client in clients_named(o.other_clients, "fedcmd.other-clients", count):
            layers[client] = self.layout.named(o.other_layer, "fedcmd.other-layer")
        return layers


def majority(votes: np.ndarray) -> int:
    """Return the index of the layer with most votes; a tie goes to the one nearer the output."""
    return len(votes) - 1 - int(votes[::-1].argmax())
