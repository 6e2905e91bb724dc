"""Makes a SuperNode that has this folder on its PYTHONPATH lose an answer of the SuperLink, once.

The variable LOSE names a call (`PullMessages`, `PushObject`) and a round. The SuperLink does what
it is asked to, and the connection breaks before the SuperNode knows.
"""

import os

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

NAME, ROUND = os.environ["LOSE"].split()
call, pull = getattr(FleetHttpClient, NAME), FleetHttpClient.PullMessages
seen = set()


def losing(client, request):
    """Call, and lose the answer if it is the one."""
    answer = call(client, request)
    if NAME == "PullMessages":
        seen.update(message.metadata.group_id for message in answer.messages_list)
    if ROUND in seen:
        seen.clear()
        setattr(FleetHttpClient, NAME, call)
        raise httpx.ReadError("the connection broke")
    return answer


def looking(client, request):
    """Pull messages, and see of which round they are."""
    answer = pull(client, request)
    seen.update(message.metadata.group_id for message in answer.messages_list)
    return answer


if NAME != "PullMessages":
    FleetHttpClient.PullMessages = looking
setattr(FleetHttpClient, NAME, losing)
