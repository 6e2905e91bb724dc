"""The ServerApp: checks everything, runs the rounds of the strategy, and completes the report."""

import fedapps.core.quiet  # noqa: F401, before imports that take long

# isort: split

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path

import msgspec
import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapps import data
from fedapps.core import cgroups, config, log, prometheus, registry, signing
from fedapps.core.errors import RunError
from fedapps.core.flower import log as flower_log
from fedapps.core.paths import absolute, expanded
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.core.signing import SignedModel
from fedapps.core.stopping import Stopped, end_with_parent, stoppable
from fedapps.device.waiting import shorten_backoff
from fedapps.engine import evaluations, privacy, resume, unused
from fedapps.engine.federation import Federation
from fedapps.engine.fingerprints import fingerprints, outdated
from fedapps.engine.rounds import Rounds
from fedapps.engine.store import WITH_STATE, count_states
from fedapps.models import own
from fedapps.models.adapters import saves_nothing
from fedapps.report import directory
from fedapps.report.about import About
from fedapps.report.exporter import of_run
from fedapps.report.loggers import check_installed
from fedapps.report.report import Report
from fedapps.training.torch_device import GPU_HINT
from fedapps.training.workspace import Workspace, workspace
from fedapps.wire.contacts import Lookout
from fedapps.wire.fleet import Fleet
from fedapps.wire.grid import AnyGrid, StreamingGrid, reaches_devices
from fedapps.wire.nodes import NodeRegistry

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federated training; if it is impossible, log one line and fail the run."""
    end_with_parent(sys.argv)
    try:
        log.info("%s", run(grid, context))
    except RunError as error:
        flower_log(ERROR, "error: %s", error)  # shown to a user who streams the log of the run
        raise


@log.remembering()
def run(grid: AnyGrid, context: Context, plots: bool = True) -> Path:
    """Run what the run-config asks for; return the run directory. Raises `RunError`."""
    registry.check_packages(registry.STRATEGIES, registry.CLIENTS, "experiments")
    settings = config.read(context.run_config)
    if not settings.resume:
        directory.check_new(expanded(settings.runs_dir, "runs-dir"), settings.run_name)
    check_installed(settings.logger_names)
    prometheus.check_installed(settings.metrics_port)
    for note in [*config.foreign_keys(context.run_config), *privacy.warnings(settings)]:
        log.warning("%s", note)
    for note in config.overridden(context.run_config):
        log.info("note: %s", note)
    if settings.threads > (cores := cgroups.cores()):
        log.warning("threads = %s on %s cores is slow", settings.threads, cores)
    space = workspace(settings)
    data.check_finite(space.dataset)
    odd = data.notes(space.dataset, settings.split, settings.partitioner, settings.task)
    for note in (*odd, *privacy.of_pooled_values(space)):
        log.warning("%s", note)
    for note in notes_on_model(space):
        log.warning('model = "%s": %s', settings.model, note)
    if note := saves_nothing(space.model):
        log.warning("adapter-rank = %s: %s", settings.adapter_rank, note)
    for note in (told_of_data := (*space.dataset.told, *space.population.told)):
        log.info("note: %s", note)
    listed = listed_clients(space)
    held = class_counts(space, listed) if listed else None  # a bad partition ends here
    strategy_class = registry.strategy_class(settings.strategy)
    registry.client_class(settings.strategy)  # a missing client module ends the run here
    strategy = strategy_class(space)
    rounds = Rounds(strategy)  # checks the strategy, before there is a run directory
    federation = Federation(rounds)  # and this the budget of privacy
    for note in [*unused.notes(strategy), *outdated(strategy)]:
        log.warning("%s", note)
    reporting = _reporting(rounds, federation, context.run_config, (*odd, *told_of_data))
    with reporting as report, federation.recorded(report):
        if held is not None and space.task.has_classes:
            report.hold(listed, held)
        report.follow(strategy.arrays)
        try:
            with log.to_file(report.folder / log.FILE), stoppable():
                with report.closing(plots), watched(report, plots) as lookout:
                    nodes = node_registry(grid, space)
                    nodes.lookout = lookout
                    fleet = meet(nodes, space)
                    if rounds.recovery.left:
                        note_processor(fleet, report)
                    rounds.run(grid, report, nodes, fleet)
                told = {"seconds": report.seconds} | federation.figures(report)
                told[WITH_STATE] = count_states(report.folder)
                if report.rows:
                    told["layers"] = evaluations.layers_told(strategy, report.last_round)
                    told["evaluated_of"] = len(evaluations.evaluated(strategy))
                report.finish(strategy.arrays, told, plots)
                rounds.recovery.tell_best(report.folder)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(resume.interrupted(report)) from None
        except Stopped:
            log.info("%s", resume.interrupted(report))
            raise
    return report.folder


@contextmanager
def watched(report: Report, page: bool) -> Iterator[Lookout]:
    """Let an operator follow the run in this context, in files and by Prometheus.

    A run on devices has its `page` from the start, because a round can take hours; that of one that
    has finished, and is to go on, waits until it does. Raises `RunError` if the port of
    `metrics-port` cannot be used.
    """

    def note(who: int | str, kind: str, detail: str) -> None:  # it is one of the round before
        report.event(report.last_round, who, kind, detail)

    devices = report.settings.on_devices
    if drawn := devices and page and not directory.has_finished(report.folder):
        report.draw_page(math.inf)
    try:
        with prometheus.serving(report.settings.metrics_port, of_run(report.folder)):
            yield Lookout(report.folder if devices else None, note)
    finally:
        if drawn and report.pending:  # it was refused
            report.draw_page()


@contextmanager
def _reporting(
    rounds: Rounds, federation: Federation, flat: Mapping[str, Scalar], notes: tuple[str, ...]
) -> Iterator[Report]:
    """Make the directory of a new run, or reopen that of the run that `resume` names.

    `notes` are what was told of the data. The directory is locked, so that no other process resumes
    the run meanwhile.
    """
    settings, space = rounds.settings, rounds.strategy.workspace
    folder = resume.find(settings)
    if folder is None:
        if settings.checkpoint_every:
            resume.offer(rounds.strategy)
        names = (space.population.names, space.class_names)
        marks = fingerprints(rounds.strategy)
        about = About.new(space.task, marks, space.data.pooled, notes)
        report = Report.create(settings, flat, space.task, names, about)
        with resume.alone(report.folder):
            yield report
        return
    with resume.alone(folder):
        progress = resume.restore(folder, rounds)
        federation.check(folder)
        resume.tell_of_repeated_sums(folder, settings, progress.round)
        report = Report.reopen(folder, settings, flat, progress, space.task, space.data.pooled)
        log.info("run directory: %s, %s", folder, resume.how_far(rounds.recovery))
        yield report


def class_counts(space: Workspace, clients: Sequence[int]) -> np.ndarray:
    """Count clients' training samples by class, [clients, classes]; raises `RunError`."""
    shares = [space.population.share(client) for client in clients]
    return data.class_counts(space.dataset.labels, shares)


def node_registry(grid: AnyGrid, space: Workspace) -> NodeRegistry:
    """Return the registry that greets the SuperNodes of a run."""
    s = space.settings
    device_count = s.num_clients if s.on_devices else 0
    if not (simulated := not reaches_devices(grid)):
        shorten_backoff()
    streaming, limit = StreamingGrid(grid), s.max_samples
    out = space.population.held_out if device_count else ()
    start = initial_model(s) if device_count and s.initial_model else None
    return NodeRegistry(
        streaming, s.min_available, s.round_timeout, device_count, simulated, limit, out, start
    )


def initial_model(s: Settings) -> SignedModel:
    """Read the model that devices are to get; raises `RunError` if its manifest says another."""
    found = signing.read(absolute(s.initial_model, "initial-model"))
    signing.check(found, None, f'initial-model = "{s.initial_model}"')
    return found


def meet(there: NodeRegistry, space: Workspace) -> Fleet:
    """Wait for the SuperNodes; warn if the server sees a GPU that they do not see."""
    fleet = there.wait_for_nodes()
    if torch.cuda.is_available() and not fleet.cuda and space.settings.device != "cpu":
        log.warning("there is a GPU, but clients do not see it; give them one: %s", GPU_HINT)
    return fleet


def note_processor(fleet: Fleet, report: Report) -> None:
    """Record the processor of a simulation's clients; raises `RunError` if it was another one."""
    chosen, before = report.settings.device, report.about.processor
    if not fleet.workers:  # devices may have any
        return
    now = "cuda" if fleet.cuda and chosen != "cpu" else "cpu"
    if before and before != now:
        way = "-c device=cpu" if before == "cpu" else f"an engine with a GPU: {GPU_HINT}"
        raise RunError(
            f'device = "{chosen}": would go on on {now}, with other last digits, but the run began'
            f" on {before}; resume with {way}"
        )
    report.about = msgspec.structs.replace(report.about, processor=now)
    if not report.pending:  # else `Report.begin` writes it
        report.about.write(report.folder)


def listed_clients(space: Workspace) -> Sequence[int]:
    """Return the clients of samples.csv: those that train, or of many of them every n-th.

    There are none if they are devices, whose data the server does not know.
    """
    training = space.population.training
    if space.settings.on_devices:
        return ()
    every = -(-len(training) // directory.LISTED)
    if every > 1:
        told = f"{directory.SAMPLES} lists one in {every} of {len(training)} clients"
        log.info("note: %s", told)
    return training[::every]


def notes_on_model(space: Workspace) -> list[str]:
    """Return a line for each thing that looks wrong with a model of one's own."""
    if own.file_of(space.settings.model) is None:
        return []
    parameters, classes = space.layout.parameters, space.task.has_classes
    odd = own.oddities(space.model, space.dataset.inputs, parameters, classes)
    return [str(note) for note in odd]  # an error, too: the run's own samples can be others
