"""Reports of runs that never were: settings, rows and evaluations to fill run directories with."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from fedapps.core import config
from fedapps.report.report import Report
from fedapps.report.rows import ClientEval, Means, RoundRow
from fedapps.tasks import CLASSIFICATION

FIGURES = ("accuracy_without_head", "accuracy_last_local")
FLAT = {
    "strategy": "fedrep", "dataset": "digits", "seed": 7, "data-root": 'C:\\data "x"\t\x7f ü 😀',
    "lr": 1e-05, "momentum": 1e16, "num-rounds": 3, "bn-local": False, "finetune-lr": "",
    "run-name": "mine", "resume": "", "fedrep.head-epochs": 10,
    "fedseq.unfreeze-rounds": "0,100,200", "fedrep.lr": 0.30000000000000004,
}  # fmt: skip
ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
    "a": np.ones((), np.float64),
    "c": np.zeros((0, 4), np.int64),
}


def make_settings(**changes):
    """Return settings of a run of three rounds on five clients."""
    values = {
        "strategy": "fedrep", "dataset": "digits", "seed": 7, "num_clients": 5, "num_rounds": 3,
        "evaluate_every": 1, "evaluate_on": "test", "logger_names": (), "devices": "",
        "secure_sum": False, "dp": config.read(config.defaults()).dp,
        "further_rounds": frozenset(), "on_devices": changes.get("dataset") == "device",
    } | changes  # fmt: skip
    known = {key.replace("_", "-"): value for key, value in values.items()}
    flat = FLAT | {key: value for key, value in known.items() if key in FLAT}
    return SimpleNamespace(**values, flat=tuple(flat.items()))


def make_report(folder, name="run", **changes):
    """Return the report of a new run directory."""
    settings = make_settings(runs_dir=str(folder), run_name=name, **changes)
    return Report.create(settings, dict(settings.flat))


def make_row(round_=1, **changes):
    """A row of a round; accuracies of its evaluation may be among the changes."""
    if own := {key: changes.pop(key) for key in [*changes] if key.startswith("accuracy_")}:
        changes["means"] = made_means(own)
    row = RoundRow(
        round=round_, phase="train", clients=5, failures=0, train_loss=0.1 + 0.2,
        bytes_down=1_234_567, bytes_up=1_200_000, bytes_eval=10, train_macs=10**9, cost_paper=10**6,
        seconds=0.4,
    )  # fmt: skip
    return replace(row, **changes)


def made_means(columns, **more):
    """Means of an evaluation with these values by column, and nothing else."""
    scores = {when: columns.get(f"accuracy_{when}") for when in ("initial", "personalized")}
    return Means(**scores, columns=columns, **more)


def of_classes(total, right):
    """What a classification counts, if all wrong ones are taken for class 1."""
    predicted = np.array(right)
    predicted[1] += np.sum(total) - np.sum(right)
    arrays = {"total": total, "right": right, "predicted": predicted}
    return {name: np.asarray(array) for name, array in arrays.items()}


def make_results(seed=0, clients=5, classes=4):
    """Evaluations with differing test sizes, in no order; class 0 has no test sample."""
    rng = np.random.default_rng(seed)
    results = []
    for client in rng.permutation(clients).tolist():
        total = rng.integers(1, 30, classes)
        total[0] = 0
        initial, personalized = rng.binomial(total, 0.5), rng.binomial(total, 0.8)
        size = int(total.sum())
        results.append(
            ClientEval(
                client=client, num_train=size * 3, num_test=size, loss=float(rng.uniform()),
                task=CLASSIFICATION, before=of_classes(total, initial),
                after=of_classes(total, personalized),
                figures={name: float(rng.uniform()) for name in FIGURES},
            )
        )  # fmt: skip
    return results


def run_to_end(folder, name="run", rounds=3, **extra):
    """Return the report of a finished run; `extra` joins its summary."""
    report = make_report(folder, name, num_rounds=rounds)
    report.hold(range(5), np.arange(20).reshape(5, 4))
    for round_ in range(1, rounds + 1):
        means = report.evaluation(round_, make_results(seed=round_))
        report.round(
            make_row(round_, failures=int(round_ == 2), epsilon=0.25 * round_, means=means)
        )
    report.finish(ARRAYS, extra)
    return report


def drawn(folder):
    """Return the names of a run's pictures."""
    return {path.stem for path in (folder / "plots").iterdir()}


def axes_of(figure):
    """Return a picture's first axes, and their lines by label."""
    return figure.axes[0], {line.get_label(): line for line in figure.axes[0].lines}
