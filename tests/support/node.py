"""A SuperNode without a SuperLink: Flower's own functions in this process, and apps for it."""

import json

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode.nodestate import NodeStateFactory

from fedapps.core import flower
from fedapps.device.answering import API, LOOP, STATE, Answering

PROJECT = """
[project]
name = "mine"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "code:app"
clientapp = "code:app"
"""
STAYS = "[tool.fedapps]\none-process = true\n"
# Answers a query with what `tell` returns, as JSON.
CODE = """
import json, os, sys
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    asked = json.loads(message.content["asked"]["json"])
    told = ConfigRecord({"json": json.dumps(tell(asked, context), default=str)})
    return Message(RecordDict({"told": told}), reply_to=message)

"""


def fab_of(tell, stays=True, **more):
    """Return an app whose module `code` ends with this source of a function `tell`.

    `stays` says that one process can answer all messages of a run; `more` are other modules.
    """
    files = {"pyproject.toml": PROJECT + STAYS * stays, "code.py": CODE + tell}
    files |= {f"{name}.py": source for name, source in more.items()}
    content, _ = build_fab_from_files({name: text.encode() for name, text in files.items()})
    return Fab(inflatable_object.get_object_id(content), content, {})


def inside(tree):
    """The ids of all objects of a tree."""
    return [part.object_id for part in inflatable_object.iterate_object_tree(tree)]


class Node:
    """A SuperNode that answers its messages itself; the message and the reply take Flower's way."""

    def __init__(self):
        self.loop = LOOP.load()
        self.answering = Answering(self.loop, API.load(), STATE.load())
        self.answering.start_superexec(["flower-superexec", "--insecure"])
        store = ObjectStoreFactory()
        self.state, self.store = NodeStateFactory(objectstore_factory=store).state(), store.store()
        self.state.set_node_id(1)
        self.process = self.answering.process

    def ask(self, fab, run=1, **asked):
        """Answer a query; return what was told, or the reason of the error in the reply."""
        record = ConfigRecord({"json": json.dumps(asked)})
        reply = self.reply(fab, run, RecordDict({"asked": record}))
        if reply.has_error():
            return reply.error.reason
        return json.loads(reply.content["told"]["json"])

    def reply(self, fab, run, content):
        """Receive a query of a run and answer it; return the reply that the SuperLink gets."""
        assert self.receive(fab, run, content) == run
        sent, pushed = [], {}

        def send(message, tree, seconds):
            if message.metadata.run_id != run:
                raise RunNotRunningException
            sent.append((tree, seconds))
            return {*inside(tree)}, "s"

        self.answering.answer_and_push(
            state=self.state, object_store=self.store, send=send,
            push_object=lambda run, session, key, content: pushed.__setitem__(key, content),
        )  # fmt: skip
        ((tree, seconds),) = sent
        assert seconds >= 0
        assert not self.store.store and not self.state.msg_store, "something was left behind"
        assert not self.state.task_store, "Flower goes through all tasks for each message"
        return inflatable_utils.inflate_object_from_contents(tree.object_id, pushed)

    def receive(self, fab, run, content, pull=None):
        """Receive a query of a run; return Flower's answer. `pull` stands for pulling an object."""
        flower.TaskIdentity.run_id = run
        flower.TaskIdentity.node_id = flower.TaskIdentity.task_id = 0
        message = Message(content, 1, "query")
        message.metadata.__dict__["_message_id"] = message.object_id
        tree = inflatable_object.get_object_tree(message)
        objects = inflatable_object.get_all_nested_objects(message)
        about = vars(Run.create_empty(run)) | {"fab_hash": fab.hash_str, "series_id": run}
        about |= {"fab_id": "somebody/mine", "fab_version": "1.0.0"}
        return self.loop._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={"client-id": 1},
            receive=lambda: (remove_content_from_message(message), tree),
            get_run=lambda _: Run(**about), get_fab=lambda *_: fab,
            pull_object=pull or (lambda _, key: objects[key].deflate()),
            confirm_message_received=lambda *_: None, trusted_entities=None,
        )  # fmt: skip
