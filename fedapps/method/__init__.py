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

Most methods, such as FedRep and Ditto, need these names and types of keys, and no others:

- `BaseStrategy` and `BaseClient`, the two classes with their hooks;
- the `Plan` of a client's round, made of `Stage`s; a `Slice` is a tuple of layers, and `replace`
  copies a plan or stage with changes;
- `Arrays` by name, which `take` copies out of a model and `put` into it;
- `ClientUpdate`, what the server gets from a client;
- the `Objective` of a training step, with the types `Backward` and `Samples`; `Costs` of a hook;
- `MethodSettings`, the method's own keys, each with a meaning (`doc`); `FINETUNING`, the keys of
  general fine-tuning, which methods often list as `unused`.

The others, by what they are for:

- types of keys: `Count`, `NonNegative`, `Positive`, `AtLeastZero`, `Fraction`, `Share`, `BelowOne`;
- checks of keys: `RunError` refuses a value, `clients_named` reads a list of clients;
- anywhere: `log`, random numbers (`generator`), arrays `under` a prefix, and `rehearse` to try a
  pair of classes;
- aggregation: `weighted_mean`, `plain_mean`, mean features of each class (`Prototypes`) and their
  weights (`class_counts`), and the base classes `KeepsLast` of methods that keep what each client
  sent last, `Mixing` of those that send each client a mixture of it, `WarmUp` of methods that begin
  with FedAvg, `LateMixing` of those that do both, and `PlainMean` of methods in which all clients
  count the same; `rounds_of` is a fraction of a run's rounds;
- more training: what it did (`TrainingStats`); inner steps with `descend`, `pull`, `restored`,
  `swapped`;
- parts of the model: `run`, `features`, `in_sequence`, `copied`, `chunks`; modules to predict with
  (`Predictor`, and `CutModel` of body and head);
- results of the method's own: `Figure`, `WITHOUT_HEAD`, `EventPlot`;
- more than plans: a `Question` to all clients; a `Failure` in place of an update; `SERVER`, the
  client of an update that the server makes.
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
from fedapps.method.mixing import KeepsLast, LateMixing, Mixing
from fedapps.method.on_features import CutModel, Predictor, Prototypes, class_counts
from fedapps.method.plain import PlainMean
from fedapps.method.rehearsal import rehearse
from fedapps.method.strategy import FINETUNING
from fedapps.method.update import SERVER, ClientUpdate, Failure, replace, under
from fedapps.method.warmup import WarmUp, rounds_of
from fedapps.models.grouping import copied
from fedapps.models.layers import Arrays, Slice, in_sequence, put, run, take
from fedapps.training.batches import Samples, chunks
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.evaluation import features
from fedapps.training.inner_steps import descend, pull, restored, swapped
from fedapps.training.objective import Backward, Objective
from fedapps.training.plan import Plan, Stage

__all__ = [  # noqa: RUF022, in the order of the docstring
    # what most methods need
    "BaseStrategy", "BaseClient", "Plan", "Stage", "Slice", "replace", "Arrays", "take", "put",
    "ClientUpdate", "Objective", "Backward", "Samples", "Costs", "MethodSettings", "doc",
    "FINETUNING",
    # types of keys
    "Count", "NonNegative", "Positive", "AtLeastZero", "Fraction", "Share", "BelowOne",
    # checks of keys
    "RunError", "clients_named",
    # anywhere
    "log", "generator", "under", "rehearse",
    # aggregation
    "weighted_mean", "plain_mean", "Prototypes", "class_counts", "KeepsLast", "Mixing",
    "WarmUp", "LateMixing", "PlainMean", "rounds_of",
    # more training
    "TrainingStats", "descend", "pull", "restored", "swapped",
    # parts of the model, and scores
    "run", "features", "in_sequence", "copied", "chunks", "Predictor", "CutModel",
    # results of the method's own
    "Figure", "WITHOUT_HEAD", "EventPlot",
    # more than plans
    "Question", "Failure", "SERVER",
]  # fmt: skip
