"""Run directories of any size, made by the report itself but without any training; their status."""

from dataclasses import replace

import numpy as np

from fedapps import cli
from fedapps.core import config
from fedapps.report import directory
from fedapps.report.report import Report
from fedapps.report.rows import ClientEval, Means, RoundRow
from fedapps.tasks import CLASSIFICATION
from tests.support.reports import made_means, of_classes


def begin_run(folder, *run_config, clients=5, classes=4, name="run"):
    """Return the report of a run that has not had a round yet."""
    flat = config.parse(
        [f'strategy="fedcmd" num-clients={clients} runs-dir="{folder}" num-rounds=3', *run_config]
    )
    report = Report.create(config.read(flat | {"run-name": name}), flat)
    report.held = np.random.default_rng(0).integers(0, 9, (clients, classes))  # for `add_round`
    report.hold(range(clients), report.held)
    return report


def add_round(report, round_, failures=0):
    """Add an evaluated round, a vote and a score of every client."""
    draws, counts = np.random.default_rng(round_), report.held
    results = []
    for client, held in enumerate(counts):
        total = held + 1
        initial, personalized = draws.binomial(total, 0.4), draws.binomial(total, 0.7)
        size = int(total.sum())
        counts_of = [of_classes(total, right) for right in (initial, personalized)]
        results.append(ClientEval(client, int(held.sum()), size, 0.5, CLASSIFICATION, *counts_of))
        report.event(round_, client, "score", f"fc1 {draws.uniform():.3g}")
        report.event(round_, client, "vote", "fc1" if client % 2 else "fc2")
    row = RoundRow(
        round=round_, phase="train", clients=len(counts), failures=failures, train_loss=1 / round_,
        bytes_down=2_000_000, bytes_up=1_000_000, bytes_eval=500_000, train_macs=10**9,
        cost_paper=10**6, seconds=0.5, epsilon=0.1 * round_,
        means=report.evaluation(round_, results),
    )  # fmt: skip
    report.round(row)


def finished_run(folder, *run_config, rounds=3, **size):
    """Return the directory of a run that has finished, without plots."""
    report = begin_run(folder, *run_config, **size)
    report._plot = lambda: None
    for round_ in range(1, rounds + 1):
        add_round(report, round_, failures=int(round_ == 2))
    report.event(2, 3, "failure", EVIL)
    report.finish({"a": np.zeros(3, np.float32)}, {})
    return report.folder


def scored_run(
    folder,
    name,
    *run_config,
    scores=((0.2, 0.4),),
    costs=1,
    phases=(),
    finished=True,
    evaluated=None,
    **figures,
):
    """Return the directory of a run with given accuracies, of which nothing but tables is there.

    `scores` are (initial, personalized) of each round, None where it was not evaluated (or only
    the second, where no client personalized), and `figures` further accuracies of all of them.
    `evaluated` is how many clients each round has scored, or which ones; only then clients.csv has
    rows. A round n costs (place + n) x `costs` of each cost, the place in COSTS; the rounds in
    `phases` have a second line.
    """
    report = begin_run(folder, f"num-rounds={len(scores) or 1}", *run_config, name=name)
    for number, score in enumerate(scores, 1):
        means = Means()
        if score is not None:
            columns = {
                "accuracy_initial": score[0],
                "accuracy_personalized": score[1],
                "accuracy_personalized_std": score[1] and score[1] / 10,
            }
            count = evaluated if isinstance(evaluated, int | None) else len(evaluated)
            means = made_means(columns | figures, evaluated=count)
            if count is not evaluated:
                rows = [[number, client] for client in evaluated]
                directory.append(report.folder / "clients.csv", rows)
        row = RoundRow(
            round=number, phase="train", clients=5, train_loss=1 / number, means=means,
            seconds=0.5 * number,
            **{cost: costs * (place + number) for place, cost in enumerate(COSTS)},
        )  # fmt: skip
        report.round(row)
        if number in phases:
            later = made_means({"accuracy_initial": 0.9, "accuracy_personalized": 0.95})
            report.round(replace(row, phase="finetune", means=later))
    if finished:
        report.finish({"a": np.zeros(3, np.float32)}, {}, plots=False)
    return report.folder


COSTS = ("failures", "bytes_down", "bytes_up", "bytes_eval", "train_macs", "cost_paper")
EVIL = """ValueError: </td></table><script>document.title = "taken"</script> "&amp; 'x'"""


def shown(capsys, *words):
    """The lines that `fedapps status` prints."""
    capsys.readouterr()
    assert cli.main(["status", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()
