"""The client of FedFC: it trains its layers with the server's gradients and keeps nothing."""

import time

import torch

from fedapps.method import copied
from fedapps.split import SplitClient

REPEATS = 3  # measured steps per layer, after one that does not count


class FedFCClient(SplitClient):
    """It trains layers 1..c with E epochs of SGD (Algorithm 1); the server holds the others."""

    def answer(self, question: str) -> list[float]:
        """For cuts "auto": return the seconds of a step, forward and backward, in each layer."""
        if question != "layer-seconds":
            return super().answer(question)
        x = self.train_data[0][: self.settings.batch_size]
        self.workspace.trainer.freeze_all_but(self.layout.names)
        seconds = []
        for name in self.layout.names:
            layer, taken = copied(self.model, (name,)), []
            for _ in range(REPEATS + 1):
                # Tokens have no gradients; and a leaf cannot be changed in place.
                inputs = x.detach().requires_grad_(x.is_floating_point()).clone()
                start = time.perf_counter()
                outputs = layer(inputs)
                outputs.sum().backward()
                if outputs.is_cuda:
                    torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
            seconds.append(min(taken[1:]))
            x = outputs.detach()
        self.model.eval()
        return seconds
