"""The server side of a method: the hooks that its author writes.

A method is a pair of the same name. `strategies/x.py` says what the server does, `clients/x.py`
what a client does; `fedapps.method` is all that both import. In each round the server selects
clients, sends each a plan and a slice of its model, and aggregates the slices that come back.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from fedapps.core.draws import sample_clients
from fedapps.core.schema import MethodSettings
from fedapps.method.aggregation import weighted_mean
from fedapps.method.conversation import Conversation
from fedapps.method.figures import EventPlot, Figure
from fedapps.method.flower import FlowerStrategy
from fedapps.method.tools import StrategyTools
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan, Stage

FINETUNING = ("finetune-epochs", "finetune-lr", "finetune-part")  # keys of general fine-tuning


class BaseStrategy(StrategyTools, Conversation, FlowerStrategy):
    """What a method does on the server. Only `plan` has to be written; FedAvg is the rest.

    Set when `setup` is called, and yours to use in every hook:

    - `settings`: the general keys of the run; `options`: the method's own (class `Settings` of its
      module; annotate `options: Settings`).
    - `layout`: the layers of the model, `layout.names`, `.head`, `.body` (see `Layout`).
    - `arrays`: the server's model, float32 by name; initial values where never aggregated.
    - `state`: all else that the method keeps on the server: arrays by name, of any dtype.
    - `clients`: those that are there; `count(client, "train")`: how many samples one has.
    - `exchange(round_, slice, *stages)`: the plan that downloads, trains, and uploads a slice;
      `stage(round_, layers, epochs)`: a stage with the settings of the run.
    - `event(round_, client, kind, detail)`: adds a line to events.csv.

    Rarely needed: `workspace` (data, model and trainer of this process), `train_here` (training in
    the server's process), `other("fedper")` (another method's strategy, to build on).
    """

    citation: ClassVar[str] = ""  # of the paper, for `python -m fedapps methods`
    exchanges: ClassVar[str] = ""  # what travels, in a few words
    figures: tuple[Figure, ...] = ()  # that its clients give beside loss and accuracy
    plots: ClassVar[tuple[EventPlot, ...]] = ()  # drawn from its events
    final_phase: ClassVar[str] = ""  # name of a last phase: every client gets the final model
    clips_by_sample: ClassVar[bool] = True  # whether clip-mode "sample" fits its steps
    sends_its_model: ClassVar[bool] = True  # to the clients, so that server-data has an effect
    least_loss: ClassVar[float] = 0.0  # of a sample; -inf where a loss of your own has no least
    needs_union: ClassVar[bool] = False  # whether the server itself trains on all clients' data
    needs_norms: ClassVar[bool] = False  # whether it is another method on a model without BatchNorm

    options: MethodSettings

    # Hooks --------------------------------------------------------------------------------

    def setup(self) -> None:
        """Check `options` (raise `RunError`) and make what the method keeps in `state`."""

    def state_bytes(self) -> int:
        """Return the bytes that `state` comes to, if it grows with the clients."""
        return 0

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys that have no effect in this run, as `local-epochs`: who sets one is told."""
        return ()

    @abstractmethod
    def plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in `round_` (from 1): mostly `self.exchange(...)`."""

    def select(self, round_: int) -> list[int]:
        """Return the clients to train in `round_`, ascending: by default a share of r."""
        s, there = self.settings, self.clients
        chosen = sample_clients(s.seed, round_, len(there), s.fraction_train)
        return [there[index] for index in chosen]

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return the arrays that `client` is sent: those of the plan's download slice."""
        return {key: self.arrays[key] for key in self.layout.shared(plan.download)}

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return new values of server arrays, by default means with weights n_i.

        Updates come one by one in client order, while later ones are still on their way.
        """
        return weighted_mean(updates)[0]

    def after_round(self, round_: int) -> TrainingStats:
        """Do what the server itself computes after aggregation; return what that cost."""
        return TrainingStats()

    def phase(self, round_: int) -> str:
        """Return the word for this round in rounds.csv."""
        return "train"

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Return how `client` is evaluated: what it downloads, and its personalization stages."""
        download = self.plan(round_, client).download
        return Plan(round=round_, download=download, stages=self.finetuning(round_), upload=())

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """Return the stages of personalization, by default F epochs of `finetune-part`."""
        s, layout = self.settings, self.layout
        parts = {"full": layout.names, "head": layout.head, "body": layout.body}
        if not s.finetune_epochs:
            return ()
        stage = Stage(
            layers=parts[s.finetune_part],
            epochs=s.finetune_epochs,
            lr=s.finetune_rate,
            optimizer=s.optimizer,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
        )
        return (stage,)
