"""FedEM: Marfoq, Neglia, Bellet, Kameni, Vidal, FMTL under a Mixture of Distributions, 2021."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    BaseStrategy,
    ClientUpdate,
    Count,
    MethodSettings,
    Plan,
    doc,
    generator,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedEM's own keys."""

    components: Annotated[Count, doc("M: number of component models")]


class FedEM(BaseStrategy):
    """Clients share M component models; each mixes their outputs by weights of its own (Alg. 1).

    Symbols: T `num-clients`, K `num-rounds`, J `local-epochs`, eta `lr`, M `components`.
    Component 1 is the server's model; the others are in `state`. At first they are the initial
    model with the entries of each weight in another order (with `initial-model`, of the head only),
    because components that are alike would stay alike (our choice).
    A newcomer gets all components, and finds its weights by one E-step.
    State: `c/<m>/<key>` for m = 2 .. M.
    """

    citation = "Marfoq et al. 2021"
    exchanges = "M models"
    sends_its_model = False
    unused = FINETUNING
    needs_classes = True
    in_eval_mode = ("train",)
    options: Settings

    def setup(self) -> None:
        """Make the components from the initial model."""
        s, layout = self.settings, self.layout
        mixed = set(layout.keys_of(layout.head if s.initial_model else layout.names))
        for m in range(2, self.options.components + 1):
            draws = generator(s.seed, "fedem", m)
            for key in layout.shared(layout.names):
                value = self.arrays[key]
                if key in mixed:  # drawn for each key, so that the next one's draws are the same
                    other = draws.permutation(value.ravel()).reshape(value.shape)
                    value = other if key in layout.parameters else value  # constants have places
                self.state[f"c/{m}/{key}"] = value

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange all layers of all components."""
        return self.both_ways(super().plan(round_, client), "c/")

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Download all components, and train nothing."""
        return replace(self.plan(round_, client), stages=(), upload=(), sends={})

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average each component, with weights n_t (line 13); no variance is below 0."""
        means, variances = self.averaged(updates), self.layout.variances
        for name in [name for name in self.state if name.startswith("c/")]:
            if name.split("/", 2)[2] in variances:
                self.state[name] = np.maximum(self.state[name], 0.0)
        return means
