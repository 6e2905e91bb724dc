"""The outcome of a run: its status, and the one line that says why it failed."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedapps.core.errors import RunError

COMPLETED = "finished:completed"
_OUR_ERROR = re.compile(r"^(?:ERROR\s*:\s+)?error: (.+)$")
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception)\b.*: .+$")
_TOO_FEW = re.compile(
    r"The system \(CPUs=([\d.]+), GPUs=([\d.]+)\).*'num_cpus': ([\d.]+), 'num_gpus': ([\d.]+)"
)
_LONG = re.compile(r"AF_UNIX path length cannot exceed .+")  # of a socket of Ray
_DETAILS = re.compile(r"^\w+ failed with exception: ")
# The second one is what is left if a signal ended the process: all exceptions are named.
_KILLED = ("No heartbeat received from the task", "Task failed with unknown error.")
_RESUME = (
    "the run's process gave no sign of life any more (it, or the SuperLink, was killed or"
    " suspended); resume it: fedapps run --resume RUN, or fedapps nightly --resume"
)
NOT_BEGUN = (
    "has not begun for a minute: its process probably takes longer than the 30 s that Flower gives"
    " it to load, and is started again and again; docs/devices.md#a-run-that-does-not-begin"
)
_VAGUE = ("An error was encountered. Ending simulation.", "N/A")


@dataclass(frozen=True)
class LaunchResult:
    """How a run ended: `status` is Flower's, or `not started` or `lost` (its SuperLink died)."""

    run_id: int
    status: str
    lines: list[str] = field(repr=False)
    details: str = ""

    @property
    def completed(self) -> bool:
        """True if the run was completed without an error."""
        return self.status == COMPLETED

    @property
    def error(self) -> str:
        """The one line that says why the run failed; empty if it did not."""
        if self.completed:
            return ""
        ours = [match[1] for line in self.lines if (match := _OUR_ERROR.match(line.strip()))]
        if ours:
            return ours[-1]
        if few := next(filter(None, map(_TOO_FEW.search, self.lines)), None):
            return _too_few(*map(float, few.groups()))
        if long := next(filter(None, map(_LONG.search, [*self.lines, self.details])), None):
            return f"{long[0]}; fedapps stop, and set RAY_TMPDIR to a shorter folder, such as /tmp"
        if reason := reason_of(self.details):
            return reason
        causes = [line.strip() for line in self.lines if _EXCEPTION.match(line.strip())]
        return causes[-1] if causes else boxed(self.lines) or f"the run is {self.status}"


def status_of(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Return status and details of the run in the answer of `flwr ls --run-id N --format json`.

    Raises `RunError` if the answer has none.
    """
    try:
        run = answer["runs"][0]
        return run["status"], run["status-details"]
    except (LookupError, TypeError) as error:
        raise RunError(f"flwr ls: unexpected answer: {json.dumps(answer)}") from error


def answer_of(output: str) -> dict[str, Any]:
    """Return the parsed output of `flwr ls --format json`, whatever else is printed around it.

    Raises `RunError` if it is an error.
    """
    answer: dict[str, Any] = {}
    with suppress(ValueError):  # no JSON, or only the beginning of it
        answer, _ = json.JSONDecoder().raw_decode(output, output.index("{"))
    if not answer.get("success"):
        raise RunError(f"flwr ls: {answer.get('error-message', output) or 'no answer'}")
    return answer


def reason_of(details: str) -> str:
    """Return why a run failed, without Flower's prefix; empty if Flower gives no reason."""
    reason = " ".join(_DETAILS.sub("", details).split())
    if reason in _KILLED:
        return _RESUME
    return "" if reason in _VAGUE else reason


def _too_few(cpus: float, gpus: float, needed_cpus: float, needed_gpus: float) -> str:
    return (
        f"each SuperNode needs {needed_cpus:g} CPUs and {needed_gpus:g} GPUs, and Ray has "
        f"{cpus:g} and {gpus:g} here; let each have less: --federation-config "
        "'client-resources-num-cpus=1 client-resources-num-gpus=0.0'"
    )


def boxed(lines: Sequence[str]) -> str:
    """Return the text of the last box that `flwr` drew around an error, as one line."""
    inside = [line.strip() for line in lines if line.strip().startswith("│")]
    return " ".join(" ".join(line.strip("│ ") for line in inside).split())
