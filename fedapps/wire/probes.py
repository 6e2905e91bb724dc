"""Find out which replies of devices will never come.

The SuperLink hands out a message once, even if the connection breaks before the device has it. A
device that was started again knows nothing of the message that it worked on before, and a reply
that cannot be sent is dropped. The server would wait for such a reply until the round times out. So
after a while it sends a probe, which is an empty message. A device answers one message after the
other, in the order in which they were sent. If it has answered the probe and not the message before
it, there is nothing more to wait for.
"""

from collections.abc import Collection, Iterator, Mapping

from flwr.app import Message, RecordDict

FIRST = 30.0  # seconds without a reply until the first probe; the next when the wait has doubled
LOST = "no reply will come: the device was started again, or its connection has lost it"


class Probes:
    """The probes about messages; `nodes` are the SuperNodes of these by message id."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        self.nodes = nodes
        self.sent: dict[str, str] = {}  # by probe: the message that it is about
        self._next = FIRST
        self._answered: list[str] = []

    def due(self, pending: Collection[str], waited: float) -> dict[str, Message]:
        """Return the probes to be sent now, by the message that each is about.

        `pending` are the messages without a reply after `waited` seconds.
        """
        self.sent = {probe: about for probe, about in self.sent.items() if about in pending}
        if waited < self._next:
            return {}
        self._next = 2 * waited
        return {id_: Message(RecordDict(), self.nodes[id_], "query.probe") for id_ in pending}

    def takes(self, reply: Message) -> bool:
        """Tell whether a reply answers a probe, and keep it in mind."""
        about = self.sent.pop(reply.metadata.reply_to_message_id, None)
        if about is not None and not reply.has_error():  # else the device has not seen it
            self._answered.append(about)
        return about is not None

    def lost(self) -> Iterator[str]:
        """Yield the messages that probes have overtaken, once all that has arrived was read."""
        while self._answered:
            yield self._answered.pop()
