"""The server side of a method: the hooks that a method's author writes.

A method is a pair of modules with the same name: `strategies/x.py` says what the server does, and
`clients/x.py` what a client does. Both import only `fedapps.method`. In each round the server
selects clients, sends each a plan and a slice of its model, and aggregates the slices it gets.
"""

from abc import ABC
from collections.abc import Iterator
from typing import ClassVar

from fedapps.core.draws import sample_clients
from fedapps.core.schema import MethodSettings
from fedapps.method.conversation import Conversation
from fedapps.method.figures import EventPlot, Figure
from fedapps.method.growth import Growing
from fedapps.method.robust import average
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan, Stage

FINETUNING = ("finetune-epochs", "finetune-lr", "finetune-part")  # keys of general fine-tuning


class StrategyHooks(Growing, Conversation, ABC):
    """What a method does on the server. Write `plan` and others; by default they are FedAvg's.

    These are set when `setup` is called, and you can use them in every hook:

    - `settings`: the general keys of the run; `options`: the method's own keys (the class
      `Settings` of its module; annotate `options: Settings`).
    - `layout`: the layers of the model, such as `layout.names`, `.head`, `.body` (see `Layout`).
    - `arrays`: the server's model, as float32 arrays by name. An array that was never aggregated
      has its initial value.
    - `state`: all else that the method keeps on the server, as arrays of any dtype by name.
    - `clients`: the clients that are there; `count(client, "train")`: how many samples one has.
    - `exchange(round_, slice, *stages)`: the plan that downloads, trains, and uploads a slice;
      `stage(round_, layers, epochs)`: a stage with the settings of the run.
    - `event(round_, client, kind, detail)`: adds a row to events.csv.

    You rarely need these: `workspace` (data, model and trainer of this process), `train_here`
    (training in the server's process), `other("fedper")` (another method's strategy to build on).
    """

    citation: ClassVar[str] = ""  # the paper, for `python -m fedapps methods`
    exchanges: ClassVar[str] = ""  # what travels, in a few words
    figures: tuple[Figure, ...] = ()  # what clients report besides loss and metrics
    plots: ClassVar[tuple[EventPlot, ...]] = ()  # plots of its events
    final_phase: ClassVar[str] = ""  # name of a phase after the last round, for all clients
    clips_by_sample: ClassVar[bool] = True  # whether its steps work with clip-mode "sample"
    sends_its_model: ClassVar[bool] = True  # whether clients train it as it is; else no server-data
    least_loss: ClassVar[float] = 0.0  # lower bound of a sample's loss; -inf if there is none
    needs_union: ClassVar[bool] = False  # whether the server itself trains on all clients' data
    needs_norms: ClassVar[bool] = False  # whether models without BatchNorm are refused
    needs_classes: ClassVar[bool] = False  # whether tasks other than classification are refused
    in_eval_mode: tuple[str, ...] = ()  # subsets run in eval mode, besides the scored
    needs_cut: ClassVar[bool] = False  # whether models whose layers cannot run alone are refused
    newcomers_train: ClassVar[bool] = False  # whether a newcomer trains for a round, like others

    options: MethodSettings

    def setup(self) -> None:
        """Check `options` (raise `RunError`), and create what the method keeps in `state`."""

    def state_bytes(self) -> int:
        """Return how many bytes `state` will have, if it grows with the number of clients."""
        return 0

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys without effect in this run, such as `local-epochs`; setting one gives a warning."""
        return ()

    def plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in `round_` (from 1): by default, train and exchange all."""
        names = self.layout.names
        return self.exchange(round_, names, self.stage(round_, names))

    def select(self, round_: int) -> list[int]:
        """Return the clients that train in `round_`, ascending: by default a random share r."""
        s, there = self.settings, self.clients
        chosen = sample_clients(s.seed, self.overall(round_), len(there), s.fraction_train)
        return [there[index] for index in chosen]

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return the plan's slice and, if `state` has it, what else it receives: read-only."""
        kept = [name for name in plan.receives if name in self.state]
        of_model = self.shown(self.arrays, self.layout.shared(plan.download))
        return of_model | self.shown(self.state, kept)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return new values of server arrays: by default means with weights n_i (`aggregation`).

        Updates come one by one in client order, while later ones may still be on their way.
        """
        return average(self.settings, updates, self.arrays, self.state)

    def after_round(self, round_: int) -> TrainingStats:
        """Do the server's own computation after aggregation; return what that cost."""
        return TrainingStats()

    def phase(self, round_: int) -> str:
        """Return the word that stands for this round in rounds.csv."""
        return "train"

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Return how `client` is evaluated: what it downloads, and its personalization stages."""
        download = self.plan(round_, client).download
        return Plan(round=round_, download=download, stages=self.finetuning(round_), upload=())

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Return how a client that never trained is personalized after the last round.

        By default as in an evaluation; before, layers that stay on clients are trained if need be.
        """
        if self.newcomers_train:
            return self.alone(self.plan(round_, client))
        evaluation = self.evaluation_plan(round_, client)
        if evaluation.stages == self.finetuning(round_):  # a learning-rate schedule is over
            evaluation = replace(evaluation, stages=self.finetuning(1))
        return self.own_first(self.plan(round_, client), evaluation)

    def newcomer_download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return the arrays that such a client receives."""
        return self.download(round_, client, plan)

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """Return the stages of personalization: fine-tuning, unless its keys are `unused`."""
        unused = "finetune-epochs" in self.unused or not self.settings.finetune_epochs
        return () if unused else (self.finetuning_stage(),)
