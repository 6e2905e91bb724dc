"""What split learning adds to the plans of a round: cuts, batches, the way to the channel."""

from collections.abc import Mapping

import msgspec

from fedapps.training.channel import Channel
from fedapps.training.plan import Plan


def least_cut(plans: Mapping[int, Plan]) -> int:
    """Return the number of layers on the client that has fewest."""
    return min(len(plan.stages[0].layers) for plan in plans.values())


def recycling(plan: Plan, batches: int) -> Plan:
    """Return the plan of a client that takes so many batches an epoch, its own over again."""
    stage = msgspec.structs.replace(plan.stages[0], batches=batches)
    return msgspec.structs.replace(plan, stages=(stage,))


def through(plan: Plan, channel: Channel, token: str) -> Plan:
    """Return the plan of a client that trains through the channel, which it joins by a token."""
    own = msgspec.structs.replace(channel, token=token)
    return msgspec.structs.replace(plan, channel=own)
