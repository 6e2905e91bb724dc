"""FedSeq: Jang, Choi, Personalized FL via Sequential Layer Expansion, Applied Sciences 2024."""

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from fedapps.method import (
    FINETUNING,
    BaseStrategy,
    MethodSettings,
    NonNegative,
    Plan,
    RunError,
    Slice,
    doc,
    log,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedSeq's own keys."""

    base: Annotated[
        Literal["fedbabu", "fedavg", "fedper", "fedrep"],
        doc("method to which the schedule is applied"),
    ]
    schedule: Annotated[
        Literal["vanilla", "anti"],
        doc("vanilla: unfreeze from the input to the head; anti: from the head to the input"),
    ]
    unfreeze_rounds: Annotated[
        str,
        doc('rounds in which a group is unfrozen, counted from 0: 0,100,200; "": spread evenly'),
    ]
    groups: Annotated[NonNegative, doc("number K of groups of body layers; 0: one per layer")]


class FedSeq(BaseStrategy):
    """Sequential layer expansion: the body's K parts are unfrozen one after another.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, B `batch-size`, eta `lr`,
    E `local-epochs`, K `groups`, t_k `unfreeze-rounds`, mode `schedule`, F `finetune-epochs`.
    The head is treated as in the base method. LG-FedAvg and FedROD (Section 5.4) are no base here.
    Our choices: frozen parts are neither trained nor sent, because they still have their initial
    values, which every client makes from the seed. t counts rounds from 0. F is 10 by default,
    since the paper does not state it.
    After the last round every client receives the body and fine-tunes `finetune-part` (all layers
    by default), whatever the base method. This is the phase `finetune`; fedapps/engine/rounds.py
    runs it. Its bytes count as evaluation (`bytes_eval`), as for FedBABU, to which FedSeq is
    compared.
    A newcomer fine-tunes `finetune-part`, as all clients do in the last phase.
    """

    citation = "Jang, Choi 2024"
    exchanges = "active layers"
    final_phase = "finetune"
    options: Settings

    def setup(self) -> None:
        """Cut the body into K parts, and take over the base method's plans and figures."""
        self.base = self.other(self.options.base)
        self.figures = self.base.figures
        body, groups, rounds = self.layout.body, self.options.groups, self.settings.num_rounds
        if groups > len(body):
            raise RunError(f"fedseq.groups = {groups}: the body has {len(body)} layers")
        self.parts = [tuple(part) for part in np.array_split(body, groups or len(body))]
        self.starts = self._unfreeze_rounds(len(self.parts))
        if late := [start for start in self.starts if start >= rounds]:
            text = "fedseq: %s of %s parts stay frozen all %s rounds (unfreeze-rounds %s)"
            log.warning(text, len(late), len(self.parts), rounds, ",".join(map(str, late)))

    @property
    def unused(self) -> tuple[str, ...]:
        """The base method's unused keys, except those of fine-tuning, which FedSeq uses itself."""
        return tuple(key for key in self.base.unused if key not in FINETUNING)

    def active(self, round_: int) -> Slice:
        """A(t): the parts with t >= t_k, t = round - 1, counted from the input or the head."""
        parts = self.parts if self.options.schedule == "vanilla" else self.parts[::-1]
        unfrozen = sum(round_ - 1 >= start for start in self.starts)
        return self.layout.slice(name for part in parts[:unfrozen] for name in part)

    def plan(self, round_: int, client: int) -> Plan:
        """The base method's plan without the frozen parts."""
        base = self.base.plan(round_, client)
        frozen = set(self.layout.body).difference(self.active(round_))

        def without_frozen(layers: Slice) -> Slice:
            return tuple(name for name in layers if name not in frozen)

        stages = [replace(s, layers=without_frozen(s.layers)) for s in base.stages]
        trained = tuple(stage for stage in stages if stage.layers)
        down, up = without_frozen(base.download), without_frozen(base.upload)
        return Plan(round=round_, download=down, stages=trained, upload=up)

    def _unfreeze_rounds(self, count: int) -> list[int]:
        text, key = self.options.unfreeze_rounds, "fedseq.unfreeze-rounds"
        if not text:
            return [k * self.settings.num_rounds // count for k in range(count)]
        try:
            starts = [int(word) for word in text.split(",")]
        except ValueError:
            raise RunError(f'{key} = "{text}": must be whole numbers, as 0,100,200') from None
        if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise RunError(f'{key} = "{text}": must start with 0 and increase')
        if len(starts) != count:
            raise RunError(f'{key} = "{text}": has {len(starts)} rounds, the body {count} parts')
        return starts
