"""pFedHN: Shamsian, Navon, Fetaya, Chechik, Personalized FL using Hypernetworks, ICML 2021."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from torch.nn.functional import linear, relu

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    Count,
    MethodSettings,
    Plan,
    doc,
    generator,
)


class Settings(MethodSettings, frozen=True):
    """pFedHN's own keys."""

    hyper_lr: Annotated[AtLeastZero, doc("alpha: the server's step on the hypernetwork")]
    embedding_lr: Annotated[AtLeastZero, doc("the server's step on a client's embedding")]
    embedding_size: Annotated[Count, doc("size of an embedding; the authors: 1 + num-clients / 4")]
    hidden_size: Annotated[Count, doc("width of the hypernetwork")]
    hidden_layers: Annotated[Count, doc("number of its layers with ReLU")]
    personal_head: Annotated[bool, doc("pFedHN-PC: the head stays on the client")]


class PFedHN(BaseStrategy):
    """A hypernetwork makes each client's model from the client's embedding (Algorithm 1).

    Symbols: n `num-clients`, R `num-rounds`, K steps in `local-epochs`, eta `lr`, alpha
    `pfedhn.hyper-lr`, phi the hypernetwork's weights, v_i the embedding of client i.
    Our choices: the clients of a round give one step, with the mean of their products; BatchNorm
    statistics are averaged; at first h(v) is the initial model for every v. docs/papers/pfedhn.md
    has more.
    A newcomer trains the model of the mean embedding for one round.
    State: phi as `hn/w<k>` and `hn/b<k>` of layer k = 0 .. `hidden-layers`, `hn/w/<key>` [...,
    hidden] and `hn/b/<key>` of the output layers; `v/<client>` once it has moved.
    """

    citation = "Shamsian et al. 2021"
    exchanges = "a model made for each client"
    sends_its_model = False
    unused = FINETUNING
    newcomers_train = True
    options: Settings

    @property
    def weighs_by_count(self) -> bool:
        """Only means of what h does not make have weights: of BatchNorm statistics that travel."""
        return len(self.layout.shared(self.plan(1, 0).download)) > len(self.keys())

    def setup(self) -> None:
        """Draw the hidden layers as torch does; the output layer gives the initial model."""
        o = self.options
        sizes = [o.embedding_size, *[o.hidden_size] * (o.hidden_layers + 1)]
        for k, (wide, out) in enumerate(pairwise(sizes)):
            draws, bound = generator(self.settings.seed, "pfedhn", k), wide**-0.5
            self.state[f"hn/w{k}"] = draws.uniform(-bound, bound, (out, wide)).astype(np.float32)
            self.state[f"hn/b{k}"] = draws.uniform(-bound, bound, out).astype(np.float32)
        for key in self.keys():
            self.state[f"hn/b/{key}"] = value = self.arrays[key].copy()
            self.state[f"hn/w/{key}"] = np.zeros((*value.shape, o.hidden_size), np.float32)

    def state_bytes(self) -> int:
        """The size of the output layer, and of all embeddings."""
        o, model = self.options, sum(self.arrays[key].nbytes for key in self.keys())
        return model * (o.hidden_size + 1) + 4 * o.embedding_size * self.settings.num_clients

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers from theta_i, and send them; with pFedHN-PC, all but the head."""
        made = self.layout.body if self.options.personal_head else self.layout.names
        return self.exchange(round_, made, self.stage(round_, self.layout.names))

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send theta_i = h(v_i; phi) (line 3), and the mean BatchNorm statistics."""
        return super().download(round_, client, plan) | self.made(self.embedding(client))

    def newcomer_download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the server's own model, which is made from the mean embedding."""
        return super().download(round_, client, plan)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """phi -= alpha mean_i J_i^T (theta_i - trained theta_i), and each v_i likewise."""
        whole, phi, o = list(updates), self.phi(), self.options
        total: dict[str, torch.Tensor] = {}
        for update in whole:
            v, sent = torch.from_numpy(self.embedding(update.client)), update.arrays
            inputs = [x.requires_grad_() for x in (v, *phi.values())]
            theta = self.theta(v, phi)
            moved = [t.detach() - torch.tensor(sent[key]) for key, t in theta.items()]
            dv, *dphi = torch.autograd.grad([*theta.values()], inputs, moved)
            self.state[f"v/{update.client}"] = (v.detach() - o.embedding_lr * dv).numpy()
            total = {n: d + total[n] if total else d for n, d in zip(phi, dphi, strict=True)}
        for name, d in total.items():
            self.state[name] = (phi[name].detach() - o.hyper_lr / len(whole) * d).numpy()
        known = [self.state[name] for name in sorted(self.state) if name.startswith("v/")]
        return super().aggregate(round_, iter(whole)) | self.made(np.mean(known, axis=0))

    def theta(self, v: torch.Tensor, phi: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return h(v; phi): the parameters of a model by name."""
        for k in range(self.options.hidden_layers + 1):
            v = linear(relu(v) if k else v, phi[f"hn/w{k}"], phi[f"hn/b{k}"])
        return {key: phi[f"hn/w/{key}"] @ v + phi[f"hn/b/{key}"] for key in self.keys()}

    def made(self, v: np.ndarray) -> Arrays:
        """Return h(v; phi) as arrays."""
        return {key: t.numpy() for key, t in self.theta(torch.from_numpy(v), self.phi()).items()}

    def embedding(self, client: int) -> np.ndarray:
        """Return v_i [d] (float32): drawn from N(0, 1), later as its last step has left it."""
        draws = generator(self.settings.seed, "pfedhn-embedding", client)
        first = draws.standard_normal(self.options.embedding_size).astype(np.float32)
        return self.state.get(f"v/{client}", first)

    def phi(self) -> dict[str, torch.Tensor]:
        """Return the hypernetwork's weights, as tensors that share memory with the state."""
        return {n: torch.from_numpy(a) for n, a in self.state.items() if n.startswith("hn/")}

    def keys(self) -> tuple[str, ...]:
        """The keys of the parameters that the hypernetwork makes."""
        shared = self.layout.shared(self.plan(1, 0).download)
        return tuple(key for key in shared if key in self.layout.parameters)
