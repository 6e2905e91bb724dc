"""FedAP's client: it keeps its BatchNorms, and sends the statistics of their inputs once."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.method import BaseClient, Costs, Plan, Slice, features, rounds_of
from strategies.fedap import Settings


class FedAPClient(BaseClient):
    """It trains all layers with E epochs of SGD, and measures the inputs of its BatchNorms."""

    options: Settings

    def personal(self) -> Slice:
        """Its BatchNorms, once it has kept them: no plan may upload them."""
        norms = self.layout.norms_of(self.layout.names)
        return norms if self.kept().keys() & self.layout.shared(norms) else ()

    def of_one_run(self) -> tuple[str, ...]:
        """After a warm-up, drop the model: that of the next run exchanges BatchNorms again."""
        return ("model/",) if rounds_of(self.settings, self.options.warmup) else ()

    def before_training(self, plan: Plan) -> Costs:
        """Measure, if the plan asks for it, mean and standard deviation (ddof 0) per channel."""
        if not plan.sends:
            return Costs()
        handles, seen = [], {name: list[Tensor]() for name in plan.sends}
        for name, moments in seen.items():
            norm = self.model.get_submodule(name.removeprefix("inputs/"))
            hook = partial(note, moments)
            handles.append(norm.register_forward_pre_hook(hook, with_kwargs=True))
        features(self.model, self.train_data[0], self.layout.names)
        for handle in handles:
            handle.remove()
        self.sends |= {name: statistics(moments) for name, moments in seen.items()}
        return self.forward_costs(len(self.train_data[1]), self.layout.names)


def note(
    seen: list[Tensor], module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]
) -> None:
    """Note of a chunk of a module's inputs [b, channels, ...] size, means, variances (float64)."""
    (inputs,) = (*args, *kwargs.values())
    values = inputs.transpose(0, 1).flatten(1).double()
    mean, size = values.mean(1), torch.full_like(values[:, 0], values.shape[1])
    seen.append(torch.stack([size, mean, values.var(1, correction=0)]))


def statistics(seen: list[Tensor]) -> np.ndarray:
    """Return mean and standard deviation (ddof 0) of all chunks: float32 [2, channels]."""
    sizes, means, variances = torch.stack(seen, 1)
    share = sizes / sizes.sum(0)
    mean = (share * means).sum(0)
    variance = (share * (variances + (means - mean).square())).sum(0)
    return torch.stack([mean, variance.sqrt()]).float().cpu().numpy()
