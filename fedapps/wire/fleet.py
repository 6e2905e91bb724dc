"""The SuperNodes of a run at one moment: what they can do, and which of them runs which client."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace

from fedapps.models.layers import Layout
from fedapps.training.plan import Plan
from fedapps.wire.requests import Request

PORTION = 2**26  # bytes


@dataclass(frozen=True)
class Bound:
    """A client with data of its own: its SuperNode, and its number of samples per subset."""

    node: int
    samples: Mapping[str, int]


@dataclass(frozen=True)
class Fleet:
    """The SuperNodes of a run: their sorted ids, whether all see a GPU, how many work at once.

    `workers` is 0 if each SuperNode has its own process. `bound` holds the clients that are
    devices, in ascending order; if it is empty, every SuperNode can run every client.
    """

    nodes: list[int] = field(default_factory=list)
    cuda: bool = False
    workers: int = 0
    bound: Mapping[int, Bound] = field(default_factory=dict)

    def allot(
        self, requests: Sequence[Request], loads: Sequence[float], nodes: Sequence[int]
    ) -> list[tuple[int, list[Request]]]:
        """Return SuperNodes with the requests of each; a device's requests go to its SuperNode."""
        if self.bound:
            return [(self.bound[request.client].node, [request]) for request in requests]
        parts = zip(nodes, spread(requests, loads, nodes), strict=True)
        return [(node, part) for node, part in parts if part]

    def hosts(self, clients: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Return SuperNodes with the clients that each is asked about in a question."""
        if self.bound:
            return [(self.bound[client].node, [client]) for client in clients]
        count = len(self.nodes)
        parts = [(node, [*clients[i::count]]) for i, node in enumerate(self.nodes)]
        return [(node, part) for node, part in parts if part]


def portions(
    allotted: Sequence[tuple[int, list[Request]]], layout: Layout, together: int
) -> list[tuple[int, list[Request]]]:
    """Divide what SuperNodes have to do into messages whose replies need less memory.

    A reply holds all updates of a message, so their arrays have at most `PORTION` bytes, unless one
    client's, or those of the clients that train `together` (0: each alone), have more. Messages are
    in the order of their first clients, because an update waits for those of all clients before it.
    """
    found = list[tuple[int, list[Request]]]()
    for node, part in allotted:
        largest = max(request.nbytes_up(layout) for request in part)
        step = max(1, together)
        size = max(step, PORTION // largest // step * step) if largest else len(part)
        found += [(node, part[start : start + size]) for start in range(0, len(part), size)]
    return sorted(found, key=lambda message: message[1][0].client)


def load(plan: Plan, trained: int, scored: int, batch_size: int) -> float:
    """Estimate the cost of a plan; training on a sample costs about three evaluations of it.

    `trained` and `scored` are the client's numbers of samples for either.
    """
    epochs = sum(stage.epochs for stage in plan.stages)
    return scored + 3.0 * epochs * batch_size * math.ceil(trained / batch_size)


def spread(
    requests: Sequence[Request], loads: Sequence[float], nodes: Sequence[int]
) -> list[list[Request]]:
    """Distribute requests over the nodes: the costliest first, each to the least loaded node.

    `loads` are expected costs in any unit. Each node's part is in client order; a node without work
    gets an empty part.
    """
    parts: list[list[Request]] = [[] for _ in nodes]
    totals = [(0.0, number) for number in range(len(nodes))]  # a heap: the least loaded first
    for index in sorted(range(len(requests)), key=lambda i: -loads[i]):
        load, least = totals[0]
        parts[least].append(requests[index])
        heapreplace(totals, (load + loads[index], least))
    return [sorted(part, key=lambda request: request.client) for part in parts]
