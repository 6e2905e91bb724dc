"""What a method is written with: all that `strategies/` and `clients/` import from fedapps.

Here is a whole method, which is run for two rounds without Flower. (In the project, a method's two
classes are in two modules.)

>>> from fedapps.method import BaseClient, BaseStrategy, Plan, rehearse
>>> class HeadStays(BaseStrategy):
...     '''FedPer: the body is averaged, the head stays on each client.'''
...     def plan(self, round_, client):
...         stage = self.stage(round_, self.layout.names)
...         return self.exchange(round_, self.layout.body, stage)
>>> class HeadStaysClient(BaseClient):
...     def personal(self):
...         return self.layout.head
>>> run = rehearse(HeadStays, HeadStaysClient, "num-clients=4 fraction-train=1.0 local-epochs=1")
>>> run.rounds(2)
>>> sorted(run.clients[0])  # what the first client keeps
['model/fc2.fc.bias', 'model/fc2.fc.weight']
>>> 0.5 < run.evaluate(client=0)["accuracy_personalized"] <= 1.0
True

These are the concepts:

- a strategy (`BaseStrategy`) and a client (`BaseClient`), with their hooks;
- a `Plan` made of `Stage`s, which the server sends to a client;
- slices of the model's `Layout`;
- the `ClientUpdate` that a client sends back;
- the `Objective` of a training step;
- the method's own keys, a `MethodSettings`.
"""

from fedapps.core import log
from fedapps.core.config import clients_named
from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.schema import (
    AtLeastZero,
    BelowOne,
    Count,
    Fraction,
    MethodSettings,
    NonNegative,
    Positive,
    Share,
    doc,
)
from fedapps.method.aggregation import plain_mean, weighted_mean
from fedapps.method.conversation import Question
from fedapps.method.figures import WITHOUT_HEAD, EventPlot, Figure
from fedapps.method.flower import BaseClient, BaseStrategy
from fedapps.method.mixtures import LastSent
from fedapps.method.rehearsal import rehearse
from fedapps.method.strategy import FINETUNING
from fedapps.method.update import SERVER, ClientUpdate, Failure, replace
from fedapps.method.warmup import WarmUp, rounds_of
from fedapps.models.layers import Arrays, Layout, Slice, put, run, take
from fedapps.training.batches import Samples, chunks
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.evaluation import score
from fedapps.training.features import features
from fedapps.training.inner_steps import descend, pull, restored, swapped
from fedapps.training.objective import Backward, Objective
from fedapps.training.plan import Clip, Plan, Stage

__all__ = [
    "FINETUNING",
    "SERVER",
    "WITHOUT_HEAD",
    "Arrays",
    "AtLeastZero",
    "Backward",
    "BaseClient",
    "BaseStrategy",
    "BelowOne",
    "ClientUpdate",
    "Clip",
    "Costs",
    "Count",
    "EventPlot",
    "Failure",
    "Figure",
    "Fraction",
    "LastSent",
    "Layout",
    "MethodSettings",
    "NonNegative",
    "Objective",
    "Plan",
    "Positive",
    "Question",
    "RunError",
    "Samples",
    "Share",
    "Slice",
    "Stage",
    "TrainingStats",
    "WarmUp",
    "chunks",
    "clients_named",
    "descend",
    "doc",
    "features",
    "generator",
    "log",
    "plain_mean",
    "pull",
    "put",
    "rehearse",
    "replace",
    "restored",
    "rounds_of",
    "run",
    "score",
    "swapped",
    "take",
    "weighted_mean",
]
