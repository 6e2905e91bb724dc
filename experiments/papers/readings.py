"""Read a figure from a run directory. A reading is one of these:

    accuracy_personalized       a column of rounds.csv, in the last round
    best accuracy_personalized  the best round of a column. It is chosen on test data, so use it
                                only to compare with a paper that does the same
    virtual_seconds             the seconds of all rounds on the clock of `devices`; not in percent
    selected_before, last 10    the accuracy of the clients selected for a round before they train
                                in it, weighted by test samples; the mean over the last ten rounds

    accuracy_personalized_unseen, accuracy_difference_unseen
                                clients that were kept out of training (`unseen-clients`), each
                                with what its method gives a newcomer; and their difference from
                                the others
    newcomers, few-shot 5       the same clients, personalized on five samples of each class

    mixed batches               the shared model on the test samples of all clients, in batches
                                drawn from all of them. With `bn-stats=batch` this is another figure
                                than that of the clients, whose batches are their own samples

FedCMD's published figures are measured like `selected_before`: those of its main tables over the
last 10 rounds, of its layer tables over 20, and those in its text on participation over 100, as the
authors' logs show. It needs an evaluation before each of these rounds: for the last 10 of 200,
`evaluate-rounds = "190-199"`.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from experiments.papers.table import Table
from fedapps.core.draws import generator, sample_clients
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar
from fedapps.report import directory
from fedapps.report.columns import SPREAD, VIRTUAL
from fedapps.report.summary import unseen_columns
from fedapps.tasks import CLASSIFICATION

SELECTED = re.compile(r"selected_before, last (\d+)")
FEW = re.compile(r"newcomers, few-shot (\d+)")
MIXED = "mixed batches"
UNSEEN = unseen_columns(CLASSIFICATION.lead)
Lines = list[dict[str, str]]

# columns on the spread over clients that results are kept of, beside the accuracies
OF_CLIENTS = (*SPREAD, "balanced_personalized")


def check(reads: str, columns: Iterable[str]) -> None:
    """Raise `RunError` if a reading does not exist."""
    known = {*columns, *UNSEEN, VIRTUAL}
    others = reads == MIXED or SELECTED.fullmatch(reads) or FEW.fullmatch(reads)
    if not others and reads.removeprefix("best ") not in known:
        raise RunError(
            f"reads = {reads!r}: must be a column, `best COLUMN`, `selected_before, last N`,"
            f" `{MIXED}` or `newcomers, few-shot K`"
        )


def factor(reads: str) -> float:
    """Return what a figure is multiplied with to be shown: fractions become percent."""
    return 1.0 if reads == VIRTUAL else 100.0


def figures(
    folder: Path, flat: Mapping[str, Scalar], own: Collection[str], others: Collection[str] = ()
) -> dict[str, float]:
    """Return all accuracies at the end of a run, their best rounds, and the readings in `own`.

    `others` are the readings of other tables, which can share this run; those that the run does
    not allow are left out.
    """
    summary = directory.summary(folder)
    found = {}
    for name, value in summary.items():
        accuracy = "accuracy_" in name and not name.endswith("_round")
        if (accuracy or name in OF_CLIENTS) and value is not None:
            found[name.replace("best_", "best ")] = float(value)
    found |= {name: float(summary[name]) for name in own if summary.get(name) is not None}
    for reads in {*own, *others}:
        if match := SELECTED.fullmatch(reads):
            lines = directory.lines(folder / "clients.csv")
            with nullcontext() if reads in own else suppress(RunError):
                found[reads] = selected_before(lines, flat, int(match[1]))
    for reads in own:
        if match := FEW.fullmatch(reads):
            found[reads] = few_shot(folder, int(match[1]))
    if MIXED in own:
        found[MIXED] = mixed_batches(folder)
    return found


def mixed_batches(folder: Path) -> float:
    """Return the accuracy of a run's shared model on all clients' test samples, mixed.

    The order is drawn from the seed. Only if a prediction depends on the other samples of its
    batch is this not the clients' accuracy, weighted by test samples.
    """
    from torch import as_tensor, cat  # slow to load, as what follows

    from fedapps.engine.finished import FinishedRun
    from fedapps.training.evaluation import score

    run = FinishedRun.open(folder)
    model, data = run.shared().eval(), run.space.data
    tests = [data.samples(client, "test") for client in data.population.training]
    inputs, targets = (cat(parts) for parts in zip(*tests, strict=True))
    order = generator(run.stored.seed, "mixed-batches").permutation(len(targets))
    mixed = as_tensor(order, device=targets.device)
    return score(model, (inputs[mixed], targets[mixed]), run.space.task).value


def few_shot(folder: Path, samples: int) -> float:
    """Return the mean accuracy of newcomers that have so many training samples of each class.

    The run's model is used, and not trained again. Raises `RunError` if no client was held out.
    """
    from fedapps.engine import again  # loads torch

    # one client of those that trained: their scores are known, and do not depend on this
    scores = again.evaluate(folder, {"few-shot": samples, "evaluate-clients": 1})
    found = directory.line_about(scores)[UNSEEN[2]]
    if not found:
        raise RunError(f"{folder}: few-shot {samples}: no client was held out (unseen-clients)")
    return float(found)


def selected_before(lines: Lines, flat: Mapping[str, Scalar], last: int) -> float:
    """Return the accuracy of the clients selected for each of the `last` rounds before they train.

    `lines` are those of clients.csv, which does not say which clients were selected; that follows
    from the seed (`draws.sample_clients`). A round's accuracy is weighted by test samples. If the
    run has fewer rounds, all from the second on count. Raises `RunError` if a client was not
    evaluated.
    """
    total, count = int(flat["num-rounds"]), int(flat["num-clients"])
    if not count or flat.get("unseen-clients"):
        raise RunError("selected_before needs num-clients, and no clients held out")
    seed, fraction = int(flat["seed"]), float(flat["fraction-train"])
    rows = {(int(line["round"]), int(line["client"])): line for line in lines}
    means = []
    for round_ in range(max(total - last, 1), total):
        drawn = sample_clients(seed, round_ + 1, count, fraction)
        if missing := [client for client in drawn if (round_, client) not in rows]:
            raise RunError(
                f"round {round_}: client {missing[0]} was not evaluated; set "
                f'evaluate-rounds = "{max(total - last, 1)}-{total - 1}"'
            )
        those = [rows[round_, client] for client in drawn]
        sizes = [int(line["num_test"]) for line in those]
        right = [float(line["accuracy_initial"]) for line in those]
        means.append(sum(a * n for a, n in zip(right, sizes, strict=True)) / sum(sizes))
    if not means:
        raise RunError("selected_before needs a run of two rounds or more")
    return sum(means) / len(means)


def wanted(known: Iterable[Table]) -> set[str]:
    """Return all readings that some tables use."""
    return {r.reads for table in known for row in table.rows for r in row.readings}
