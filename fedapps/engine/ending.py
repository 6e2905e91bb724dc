"""The end of a run: its directory is completed, however the rounds ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedapps.core import log
from fedapps.core.errors import RunError, one_line
from fedapps.core.stopping import Stopped, stoppable
from fedapps.method.strategy import BaseStrategy
from fedapps.report.report import Report


@contextmanager
def completed(report: Report, strategy: BaseStrategy, plots: bool = True) -> Iterator[None]:
    """Complete the run directory after the rounds, as far as they got if they break off.

    What broke them off goes on to the caller, whatever may then fail to be written.
    """
    with stoppable():
        try:
            yield
        except BaseException as error:
            kind = "run-failed" if isinstance(error, Exception) else "interrupted"
            try:
                report.event(report.last_round, "server", kind, why(error))
                report.finish(strategy.arrays, {}, why(error), plots)
            except Exception:  # the first cause is told
                log.debug("the run directory is not complete", exc_info=True)
            raise
        report.finish(strategy.arrays, {}, plots=plots)


def why(error: BaseException) -> str:
    """Say in one line what ended the rounds."""
    if isinstance(error, Stopped):
        return error.why
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if isinstance(error, RunError):
        return str(error)
    return f"{type(error).__name__}: {one_line(str(error))}"
