"""Replies of which only a part has arrived: they hold up no other one, and come later."""

from collections import Counter
from dataclasses import replace

import pytest
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

from fedapps.wire.grid import StreamingGrid
from fedapps.wire.replies import pack_reply
from fedapps.wire.requests import read_request
from tests.wire.test_fleet import FakeLink, http_grid, make_exchange, make_update


class SlowLink(FakeLink):
    """A SuperLink that has not got the objects in `late`; `pulled` counts what it handed out.

    Like Flower's it forgets a message whose reply it has handed out.
    """

    def __init__(self):
        super().__init__()
        self.late, self.pulled, self.forgotten = set(), Counter(), set()

    def PullMessages(self, request):
        assert self.forgotten.isdisjoint(request.message_ids)
        self.forgotten |= {id_ for id_ in request.message_ids if id_ in self.replies}
        return super().PullMessages(request)

    def PullObject(self, request):
        if request.object_id in self.late:
            return PullObjectResponse(object_found=True, object_available=False)
        self.pulled[request.object_id] += 1
        return super().PullObject(request)


@pytest.fixture
def link():
    """The link with replies to two messages, these ids, and objects of the first reply alone."""
    link, objects = SlowLink(), []
    link.ids = []
    for node, message in make_exchange([[1], [2]])[1].items():
        update = replace(make_update(node + 1), num_examples=node + 1)
        link.put(pack_reply(read_request(message), [update], []))
        link.ids.append(message.metadata.message_id)
        tree = link.replies[link.ids[-1]][1]
        objects.append([part.object_id for part in iterate_object_tree(tree)])
    link.own = [id_ for id_ in objects[0] if id_ not in objects[1]]
    return link


@pytest.mark.parametrize("late", [slice(None), slice(0, 1), slice(-1, None)])
def test_a_reply_on_its_way_holds_up_no_other(link, late):
    link.late = {*link.own[late]}
    grid = StreamingGrid(http_grid(link))

    def pulled(ids):
        return [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)]

    assert pulled(link.ids) == [link.ids[1]]
    assert pulled(link.ids[:1]) == []
    link.late = set()
    assert pulled(link.ids[:1]) == [link.ids[0]]
    assert all(link.pulled[id_] == 1 for id_ in link.own), "a part was pulled twice"


def test_a_reply_that_is_given_up_on_its_way_is_unreadable(link, monkeypatch):
    """The SuperLink forgets it if a device is silent for long in the middle of an upload."""
    monkeypatch.setattr("fedapps.wire.grid.BROKEN_WAIT", 0.0)
    link.late = {*link.own}
    grid = StreamingGrid(http_grid(link))
    assert len([*grid.pull_messages(link.ids)]) == 1
    for key in link.own:
        del link.objects[key]
    link.late = set()
    link.forgotten = set()
    assert [*grid.pull_messages(link.ids[:1])] == []
    (reply,) = grid.pull_messages(link.ids[:1])
    assert reply.has_error() and "cannot be read" in reply.error.reason
