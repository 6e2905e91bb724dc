"""FedAP's client: it keeps its BatchNorms and tells the statistics of their inputs once."""

from functools import partial

import torch
from torch import Tensor, nn

from fedapps.client import BaseClient
from fedapps.plan import Plan
from fedapps.training import Trained, features


class FedAPClient(BaseClient):
    """E epochs of SGD on all layers. What a BatchNorm sees leaves it as channel statistics."""

    def before_training(self, plan: Plan) -> Trained:
        """Measure what the plan asks for: per channel the mean and standard deviation (ddof 0)."""
        if not plan.sends:
            return Trained()
        seen: dict[str, list[Tensor]] = {name: [] for name in plan.sends}
        handles = []
        for name, inputs in seen.items():
            norm = self.model.get_submodule(name.removeprefix("inputs/"))
            watch = partial(_watch, inputs)
            handles.append(norm.register_forward_pre_hook(watch))
        features(self.model, self.train_data[0], self.layout.names)
        for handle in handles:
            handle.remove()
        for name, parts in seen.items():
            values = torch.cat(parts, 1).double()
            statistics = torch.stack([values.mean(1), values.std(1, correction=0)])
            self.sends[name] = statistics.float().cpu().numpy()
        macs = self.workspace.trainer.profile.forward_macs(self.layout.names)
        return Trained(macs=len(self.train_data[1]) * macs)


def _watch(inputs: list[Tensor], module: nn.Module, args: tuple[Tensor]) -> None:
    """Keep what the module receives as [channels, values]."""
    inputs.append(args[0].transpose(0, 1).flatten(1))
