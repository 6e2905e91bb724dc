"""Clients trained together (key `group`) compared with one after the other.

    python -m benchmarks.stacked                                # CPU, one thread
    python -m benchmarks.stacked --device cuda --groups 10,50   # as make benchmark-gpu does
    python -m benchmarks.stacked --models mlp,gru --repeats 9

Each client has 50 random samples and trains for one epoch with batches of 10. The table shows the
milliseconds of a client's training: the median of the repeats, which are interleaved so that all
sizes of groups see the same machine. Column 1 is one client after the other. The last column
counts the kernels that PyTorch calls for a client's step, alone and in the largest group.
"""

import time
from statistics import median

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import IMAGES, given, trainer_of
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec
from fedapps.training.draw import Draw
from fedapps.training.objective import PLAIN, Objective
from fedapps.training.plan import Stage
from fedapps.training.stacked.group import Group
from fedapps.training.stacked.run import Lesson
from fedapps.training.torch_device import pick_torch_device

SAMPLES, BATCH, CLASSES = 50, 10, 10
INPUTS = {  # of each model: the samples of the data sets for which methods use it
    "mlp": Spec((28, 28)),
    "gru": Spec((30, 9)),
    "lenet5": IMAGES,
    "cnn": IMAGES,
}
OBJECTIVE = Objective()  # the loss of the task


class Calls(TorchDispatchMode):
    """Counts calls of operators that compute or copy something: no views, no new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Call an operator and count it."""
        free = func.is_view or "empty" in func.name() or "detach" in func.name()
        self.count += not free and "unsafe_view" not in func.name()
        return func(*args, **(kwargs or {}))


class Bench:
    """One model and its clients."""

    def __init__(self, name: str, device: torch.device, clients: int) -> None:
        inputs, self.device = INPUTS[name], device
        self.trainer = trainer_of(name, CLASSES, BATCH, inputs=inputs, device=device)
        self.group = Group(self.trainer, clients, {})
        layout = self.trainer.layout
        self.stages = (Stage(layers=layout.names, epochs=1, lr=0.01),)
        state = self.trainer.model.state_dict()
        self.start = {key: state[key].clone() for key in layout.keys_of(layout.names)}
        draws = torch.Generator().manual_seed(0)
        self.data = [self._samples(inputs, draws) for _ in range(clients)]

    def _samples(self, inputs: Spec, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(SAMPLES, *inputs.shape, generator=draws).to(self.device)
        x = x.to(memory_format=torch.channels_last) if x.dim() == 4 else x
        return x, torch.randint(CLASSES, (SAMPLES,), generator=draws).to(self.device)

    def alone(self, clients: int) -> None:
        """Train clients one after the other, each from the same model."""
        state = self.trainer.model.state_dict()
        for client in range(clients):
            for key, value in self.start.items():
                state[key].copy_(value)
            self.trainer.train(self.data[client], self.stages, Draw(0, "train", 1, client), PLAIN)

    def together(self, clients: int) -> None:
        """Train clients together."""
        draws = (Draw(0, "train", 1, client) for client in range(clients))
        lessons = [
            Lesson(self.start, data, draw, OBJECTIVE, {})
            for data, draw in zip(self.data[:clients], draws, strict=False)
        ]
        self.group.train(self.stages, lessons)

    def seconds(self, clients: int) -> float:
        """Return the seconds of the clients' training."""
        work = self.alone if clients == 1 else self.together
        begin = time.perf_counter()
        work(clients)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def calls(self, clients: int) -> float:
        """Return the calls of operators for a client's step."""
        with Calls() as found:
            (self.alone if clients == 1 else self.together)(clients)
        return found.count / clients / (SAMPLES // BATCH)


def main() -> None:
    """Print the table."""
    options = given(
        __doc__, models=",".join(INPUTS), groups="5,10,20", repeats=7, device="cpu", threads=1
    )
    torch.set_num_threads(options.threads)
    try:
        device = pick_torch_device(options.device)
    except RunError as error:
        raise SystemExit(f"error: {error}") from error
    groups = [1, *map(int, options.groups.split(","))]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {options.threads} thread(s); ms of a client")
    print(f"{'model':8}" + "".join(f"{size:>9}" for size in groups) + "   kernels: alone, together")
    for name in options.models.split(","):
        bench = Bench(name, device, max(groups))
        if bench.group.problem:
            print(f"{name:8} {bench.group.problem}")
            continue
        for size in groups:
            bench.seconds(size)  # warms up
        times: dict[int, list[float]] = {size: [] for size in groups}
        for _ in range(options.repeats):
            for size in groups:
                times[size].append(1000 * bench.seconds(size) / size)
        cells = "".join(f"{median(times[size]):9.2f}" for size in groups)
        alone, together = bench.calls(1), bench.calls(max(groups))
        print(f"{name:8}{cells}   {alone:.1f}, {together:.2f}: {alone / together:.1f} x fewer")
        best = min(groups, key=lambda size: median(times[size]))
        print(f"{'':8}{1000 / median(times[best]):.0f} client updates a second with group {best}")


if __name__ == "__main__":
    main()
