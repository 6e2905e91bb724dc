"""Every method on every kind of sample and target: it learns, or says in one line why not."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, r2_score

from fedapps.core import registry
from fedapps.core.config import parse, read
from fedapps.core.errors import RunError
from fedapps.engine import checkpoint
from fedapps.engine.finished import FinishedRun
from fedapps.engine.rounds import Rounds
from fedapps.method import rehearse
from fedapps.split.strategy import SplitStrategy
from fedapps.tasks import TASKS
from fedapps.training.workspace import Workspace
from tests.support import kinds
from tests.support.fits import hooked
from tests.support.methods import each_method, moves

SHORT = "num-rounds=2 fraction-train=1.0 local-epochs=2 finetune-epochs=1 pfedme.local-rounds=2"


def refusal(method, kind):
    """Return the line that refuses a method for a kind; "" if it works."""
    strategy_class = registry.strategy_class(method)
    if strategy_class.needs_classes and kinds.TASKS[kind] != "classification":
        return f'task = "{kind}": {method} needs a class for each sample; use another method'
    if strategy_class.needs_norms:
        return f"{method} needs a model with BatchNorm, but {kinds.MODELS[kind]} has none"
    return ""


@pytest.mark.parametrize("kind", kinds.MODELS)
@pytest.mark.parametrize("method", each_method())
def test_every_method_learns_or_says_why_not(method, kind, tmp_path, serial_run, read_csv):
    options = [kinds.options(tmp_path, kind), SHORT, f'strategy="{method}"']
    settings = read(parse([*options, f'runs-dir="{tmp_path}"']))
    strategy_class = registry.strategy_class(method)
    if line := refusal(method, kind):
        with pytest.raises(RunError) as caught:
            Rounds(strategy_class(Workspace(settings)))
        assert str(caught.value).startswith(line)
        return
    if issubclass(strategy_class, SplitStrategy):  # it needs its channel
        last = read_csv(serial_run(*options), "rounds.csv")[-1]
        assert last["failures"] == "0" and 0 <= float(last["accuracy_personalized"]) <= 1
        return
    Rounds(strategy_class(Workspace(settings)))
    made = rehearse(strategy_class, registry.client_class(method), settings)
    assert moves(made)
    told, task = made.evaluate(client=0), TASKS[kinds.TASKS[kind]]
    sizes = task.sizes(made.strategy.workspace.dataset.targets)
    for when in ("initial", "personalized"):
        counts = {name: np.array(told[f"{when}_{name}"]) for name in sizes}
        task.check_counts(counts, len(made.make(0).test_data[1]))


def test_the_tables_have_what_scikit_learn_computes(tmp_path, serial_run, read_csv):
    """Regression: every client's row, the means, the spread and the samples together."""
    folder = serial_run(
        kinds.options(tmp_path, "regression"), SHORT, 'strategy="fedavg" finetune-epochs=0'
    )
    run, truths, founds = FinishedRun.open(folder), [], []
    trained = np.concatenate([run.client(c).train_data[1] for c in range(4)]).astype(float)
    for line in read_csv(folder, "clients.csv")[-4:]:
        client = run.client(int(line["client"]))
        inputs, truth = (x.numpy() for x in client.test_data)
        found = run.shared().eval()(client.test_data[0]).detach().numpy()[:, 0]
        found = found * trained.std() + trained.mean()
        assert len(inputs) == int(line["num_test"])
        truths.append(truth)
        founds.append(found)
        assert float(line["mae_initial"]) == pytest.approx(mean_absolute_error(truth, found))
        assert float(line["r2_personalized"]) == pytest.approx(r2_score(truth, found), abs=1e-6)
    errors = [mean_absolute_error(*pair) for pair in zip(truths, founds, strict=True)]
    last = {k: v for k, v in read_csv(folder, "rounds.csv")[-1].items() if k != "phase"}
    row = {key: float(text) for key, text in last.items() if text}
    whole = mean_absolute_error(np.concatenate(truths), np.concatenate(founds))
    assert row["mae_personalized"] == pytest.approx(np.mean(errors))
    assert row["mae_personalized_std"] == pytest.approx(np.std(errors))
    assert row["mae_personalized_weighted"] == pytest.approx(whole)
    assert row["decile_personalized"] == pytest.approx(np.percentile(errors, 90))
    assert row["least_personalized"] == pytest.approx(max(errors))
    assert row["share_hurt"] == 0.0


@pytest.mark.parametrize("shape", [(), (2,)])
def test_the_unit_of_targets_makes_no_difference(shape, tmp_path, serial_run, read_csv, read_model):
    """Whole numbers, too: the same model, errors in their unit, the same R2."""
    draws = np.random.default_rng(0)
    inputs = draws.normal(size=(80, 5))
    plain = draws.integers(-5, 6, (80, *shape)) + inputs[:, :1].round().reshape(
        80, *[1] * len(shape)
    )
    runs = []
    for name, targets in {"plain": plain, "large": 30 * plain + 1000}.items():
        path = tmp_path / f"{name}.npz"
        whole = targets.astype(np.int64 if name == "large" and not shape else float)
        np.savez(path, inputs=inputs, targets=whole)
        data = f'dataset="{path}" model="mlp" task="regression" num-clients=4 min-samples=4'
        runs.append(serial_run(data, SHORT, 'strategy="fedper" alpha=5.0 batch-size=8'))
    one, other = map(read_model, runs)
    for key, values in one.items():
        np.testing.assert_allclose(other[key], values, rtol=1e-4, atol=1e-6)
    for small, large in zip(*(read_csv(run, "clients.csv") for run in runs), strict=True):
        ratio = float(large["mae_personalized"]) / float(small["mae_personalized"])
        assert ratio == pytest.approx(30, rel=1e-3)
        assert float(large["r2_personalized"]) == pytest.approx(
            float(small["r2_personalized"]), abs=1e-3
        )


def test_a_run_keeps_the_round_of_the_least_error(tmp_path, serial_run, read_csv, read_summary):
    folder = serial_run(
        kinds.options(tmp_path, "regression"),
        'strategy="fedper" num-rounds=6 lr=0.2 patience=2 keep-best=true evaluate-on="validation"',
        "validation-fraction=0.3 fraction-train=1.0 local-epochs=1 finetune-epochs=0",
    )
    scores = [float(row["mae_personalized"]) for row in read_csv(folder, "rounds.csv")]
    summary = read_summary(folder)
    assert summary["task"] == "regression"
    assert summary["best_mae_personalized"] == min(scores)
    assert summary["best_mae_personalized_round"] == 1 + int(np.argmin(scores))
    assert len(scores) == min(6, 1 + int(np.argmin(scores)) + 2)
    assert FinishedRun.open(folder / "best").round == 1 + int(np.argmin(scores))


@pytest.fixture
def diverging(tmp_path, serial_run, monkeypatch):
    """Return run(where): (folder of a run, checkpoint's best), in which (round, client) diverge.

    And the errors of a run in which nobody does: a row for each round, a column for each client.
    """
    keys = (
        kinds.options(tmp_path, "regression"),
        'strategy="fedavg" num-rounds=4 lr=0.3 fraction-train=1.0 finetune-epochs=1',
        'evaluate-on="validation" validation-fraction=0.3 keep-best=true',
    )
    table = pd.read_csv(serial_run(*keys) / "clients.csv")

    def run(where):
        def personalize(client, own, plan):
            done = own(plan)
            if (plan.round, client.client) in where:
                for values in client.model.parameters():
                    values.data.fill_(np.nan)
            return done

        with monkeypatch.context() as patch:
            hooked(patch, "fedavg", "personalize", personalize)
            folder = serial_run(*keys)
        best = checkpoint.load(folder).progress.best
        assert FinishedRun.open(folder / "best").round == best.round
        return folder, best

    return run, table.pivot(index="round", columns="client", values="mae_personalized")


def test_one_diverging_client_chooses_no_round(diverging, read_summary):
    """It counts as the worst of the others, who could say as much; the tables leave it out."""
    run, errors = diverging
    means = errors.mean(axis=1)
    worst, liar = means.idxmax(), errors.loc[means.idxmin()].idxmin()
    others = errors.drop(columns=liar)
    counted = (others.sum(axis=1) + others.max(axis=1)) / 4
    counted[worst] = means[worst]
    assert counted.idxmin() != worst
    folder, best = run({(round_, liar) for round_ in errors.index.drop(worst)})
    assert (best.round, best.diverged) == (counted.idxmin(), 0)
    assert best.score == pytest.approx(counted.min())
    lowest = min(others.drop(index=worst).mean(axis=1).min(), means[worst])
    assert read_summary(folder)["best_mae_personalized"] == pytest.approx(lowest)


def test_a_round_in_which_most_clients_diverge_is_worse_than_others(diverging, read_summary):
    """The client that is left has the least error of all."""
    run, errors = diverging
    top, least = errors.stack().idxmin()
    folder, best = run({(top, client) for client in errors.columns if client != least})
    means = errors.drop(index=top).mean(axis=1)
    assert (best.round, best.diverged, best.score) == (means.idxmin(), 0, means.min())
    assert read_summary(folder)["best_mae_personalized_round"] == top

    _, best = run({(r, client) for r in errors.index for client in errors.columns[:3]})
    alone = errors[errors.columns[3]]
    assert (best.round, best.score, best.diverged) == (alone.idxmin(), alone.min(), 3)


@pytest.mark.parametrize("kind", ["regression", "tokens"])
def test_a_diverged_client_without_scores_costs_that_client(kind, tmp_path, serial_run, caplog):
    """Its errors are not numbers, so it has no row, and the rate to lower is named."""
    with pytest.raises(RunError, match=r"is not finite: training diverged"):
        serial_run(
            kinds.options(tmp_path, kind),
            'strategy="fedavg" num-rounds=1 fraction-train=1.0 finetune-epochs=20 finetune-lr=1e9',
        )
    (line,) = (line for line in caplog.messages if "diverged, client" in line)
    assert line.startswith("round 1: personalization diverged, client 0, 1, ")
    assert line.endswith(": they are in no score; use a smaller finetune-lr than 1e+09")
