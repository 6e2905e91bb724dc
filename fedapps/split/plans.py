"""What split learning adds to the plans of a round: cuts, batches and the channel."""

from collections.abc import Mapping

import msgspec

from fedapps.training.channel import Channel
from fedapps.training.plan import Plan


def least_cut(plans: Mapping[int, Plan]) -> int:
    """Return the smallest number of layers on a client."""
    return min(len(plan.stages[0].layers) for plan in plans.values())


def recycling(plan: Plan, batches: int) -> Plan:
    """Return a plan with `batches` batches per epoch; the client repeats its own to get them."""
    stage = msgspec.structs.replace(plan.stages[0], batches=batches)
    return msgspec.structs.replace(plan, stages=(stage,))


def through(plan: Plan, channel: Channel, token: str) -> Plan:
    """Return the plan of a client that trains through the channel and joins it with `token`."""
    own = msgspec.structs.replace(channel, token=token)
    return msgspec.structs.replace(plan, channel=own)
