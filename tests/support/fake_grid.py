"""A grid whose SuperNodes appear and answer as a test says, and what they answer."""

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedapps.wire.replies import pack_reply
from fedapps.wire.requests import read_request
from fedapps.wire.serial_grid import SerialGrid


class FakeGrid(Grid):
    """A grid whose SuperNodes appear and answer as a test says.

    `polls` are the replies that come from one round of pulls to the next: each a list of functions
    that make a reply of the messages by their node. `broken` are exceptions by node: what pulling
    its reply raises. `asked` are the ids that a round of pulls asked for, one by one. `nodes` are
    the answers to `get_node_ids`; the last one stays.
    """

    def __init__(self, polls=(), nodes=((),), lost=(), broken=()):
        self.polls = iter(polls)
        self.broken = dict(broken)
        self.arrived = {}
        self.known = 0  # messages when this round of pulls began
        self.nodes = list(nodes)
        self.lost = lost
        self.pushed = []
        self.asked = []

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.pushed.append(message)
            message.metadata.__dict__["_message_id"] = f"message {len(self.pushed)}"
            lost = message.metadata.dst_node_id in self.lost
            ids.append(None if lost else message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        (id_,) = message_ids
        by_node = {message.metadata.dst_node_id: message for message in self.pushed}
        number = [message.metadata.message_id for message in self.pushed].index(id_)
        if not self.asked or id_ in self.asked[-1] or number >= self.known:
            self.known = len(self.pushed)
            self.asked.append(set())
            replies = [reply(by_node) for reply in next(self.polls, [])]
            self.arrived |= {reply.metadata.reply_to_message_id: reply for reply in replies}
        self.asked[-1].add(id_)
        if error := self.broken.pop(self.pushed[number].metadata.dst_node_id, None):
            raise error
        return [self.arrived.pop(id_)] if id_ in self.arrived else []

    def get_node_ids(self):
        return self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("Flower's own loop waits for all replies")

    def set_run(self, run):
        raise AssertionError

    @property
    def run(self):
        return "the run"

    def create_message(self, *args, **kwargs):
        raise AssertionError("deprecated")


def echo(node):
    return lambda by_node: Message(RecordDict(), reply_to=by_node[node])


def said(node, **answer):
    """What a node answers to its greeting."""
    content = RecordDict({"hello": ConfigRecord(answer)})
    return lambda by_node: Message(content, reply_to=by_node[node])


def error(node, reason="\x1b[2Jgone"):
    return lambda by_node: Message(Error(3, reason), reply_to=by_node[node])


def reply_to(message, updates, failures):
    """The reply of a SuperNode whose clients did so in a round."""
    return pack_reply(read_request(message), updates, failures)


def alter_replies(patch, kind, change):
    """Let `change` alter the content of each reply of a message type in serial runs."""
    pull = SerialGrid.pull_messages

    def altered(grid, message_ids):
        replies = pull(grid, message_ids)
        for reply in replies:
            if reply.metadata.message_type == kind:
                change(reply.content)
        return replies

    patch.setattr(SerialGrid, "pull_messages", altered)
