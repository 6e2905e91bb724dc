"""Types that msgspec reads once, while several threads read messages."""

import subprocess
import sys

THREADS = """
import os
import threading
from typing import Annotated

from fedapps.core.schema import MethodSettings, convert

begun, end, armed = threading.Event(), threading.Event(), []


class Slow:
    def __hash__(self):
        if armed:
            begun.set()
            end.wait(1)
        return 1


class Settings(MethodSettings):
    a: int
    b: Annotated[int, Slow()] = 0
    c: str = ""


def read():
    os.write(1, f"{convert({'a': 1, 'c': 'x'}, Settings, 'x.')};".encode())


armed.append(True)
first = threading.Thread(target=read)
first.start()
assert begun.wait(60)
read()
end.set()
first.join()
"""
FORK = THREADS.replace(
    "read()\nend.set()",
    "threading.Timer(0.3, end.set).start()\n"
    "if not os.fork():\n"
    "    read()\n"
    "    os._exit(0)\n"
    "assert os.wait()[1] == 0",
)
LEARNED = """
import sys
from contextlib import suppress

import msgspec

from fedapps.split.frames import Frame
from fedapps.training.plan import Plan
from fedapps.wire.requests import RequestHeader

called = set()
sys.setprofile(lambda frame, event, argument: called.add(frame.f_code.co_name))
for cls in (Frame, Plan, RequestHeader):
    with suppress(msgspec.ValidationError):
        msgspec.convert({}, cls)
sys.setprofile(None)
print("get_class_annotations" in called)
"""


def said(program):
    """Run a program in a process of its own; return its output."""
    return subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_two_threads_read_settings_at_once():
    """The first one waits while msgspec reads the types, which crashed the process."""
    assert said(THREADS) == "Settings(a=1, b=0, c='x');" * 2


def test_a_fork_reads_settings_that_a_thread_was_reading():
    """It begins when the types have been read; before, it has none who would go on."""
    assert said(FORK) == "Settings(a=1, b=0, c='x');" * 2


def test_what_threads_read_is_known_before():
    """msgspec asks for the annotations of no class when a message comes."""
    assert said(LEARNED) == "False\n"
