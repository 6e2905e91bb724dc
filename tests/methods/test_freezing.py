"""Facts of FedSeq, PerFreezeClip and FedRep."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.serial import run_serial
from fedapps.training.workspace import Workspace

# cnn on images of 8x8 pixels and 3 classes: parameters of each layer
SIZE = {"conv1": 832, "conv2": 51_264, "fc1": 131_584, "fc2": 1_539}
ACCURACIES = ("accuracy_initial", "accuracy_personalized")


def model_of(folder):
    return (folder / "model.safetensors").read_bytes()


def plans(flat_config, *options):
    space = Workspace(config.read(flat_config(*options)))
    strategy = registry.strategy_class(space.settings.strategy)(space)
    return [strategy.plan(round_, 0) for round_ in range(1, space.settings.num_rounds + 1)]


@pytest.mark.parametrize(
    ("schedule", "order"),
    [("vanilla", ["conv1", "conv2", "fc1"]), ("anti", ["fc1", "conv2", "conv1"])],
)
def test_fedseq_sends_and_changes_active_layers_only(serial_run, read_csv, fits, schedule, order):
    options = 'strategy="fedseq" fedseq.unfreeze-rounds="0,2,3" num-rounds=4 evaluate-every=0'
    folder = serial_run(
        options, f'fedseq.schedule="{schedule}" dataset="digits" alpha=1.0 batch-size=32'
    )
    table = read_csv(folder, "rounds.csv")
    active = [1, 1, 2, 3]
    for row, count in zip(table, active, strict=False):
        floats = sum(SIZE[name] for name in order[:count])
        assert int(row["bytes_up"]) == int(row["bytes_down"]) == 4 * floats * 3
    for _, state, request, update in fits:
        names = {key.partition(".")[0] for key in update.arrays}
        assert names == set(order[: active[request.plan.round - 1]])
        assert not state, "nothing is personal"
    last = table[-1]
    assert last["phase"] == "finetune" and last["clients"] == "6"
    assert int(last["bytes_eval"]) == 4 * sum(SIZE[name] for name in order) * 6
    assert last["bytes_down"] == last["bytes_up"] == "0", "an evaluation, as in FedBABU"
    scores = read_csv(folder, "clients.csv")
    means = np.mean([[float(row[column]) for column in ACCURACIES] for row in scores], 0)
    assert [float(last[column]) for column in ACCURACIES] == pytest.approx(means)
    assert means[1] > means[0], "fine-tuning trains the head, which no round has trained"
    assert not any(row[column] for row in table[:-1] for column in ACCURACIES)
    model, initial = load_file(folder / "model.safetensors"), fits[0][0].workspace.initial
    for key, value in model.items():
        assert np.array_equal(value, initial[key]) == key.startswith("fc2.")


def test_fedseq_with_everything_active_is_fedbabu(serial_run, read_summary):
    """All parts unfrozen from the start is FedBABU, in the model's every bit; so is its figure."""
    one = 'strategy="fedseq" fedseq.groups=1 fedseq.unfreeze-rounds="0"'
    mine, theirs = serial_run(one), serial_run('strategy="fedbabu"')
    assert model_of(mine) == model_of(theirs)
    figures = [read_summary(folder)["accuracy_without_head"] for folder in (mine, theirs)]
    assert figures[0] == figures[1] > 0


@pytest.mark.parametrize("base", ["fedavg", "fedper", "fedrep"])
def test_fedseq_on_another_base_trains_its_head_in_every_round(flat_config, base):
    found = plans(flat_config, f'strategy="fedseq" fedseq.base="{base}" num-rounds=3')
    for round_, plan in enumerate(found, start=1):
        trained = {name for stage in plan.stages for name in stage.layers}
        assert trained == {"fc2", *["fc1", "conv2", "conv1"][:round_]}
        assert ("fc2" in plan.upload) == (base == "fedavg")


def test_fedseq_groups_deep_models(flat_config):
    options = 'strategy="fedseq" model="resnet18" fedseq.groups=3 fedseq.schedule="vanilla"'
    found = plans(flat_config, options, "num-rounds=3")
    assert [len(plan.upload) for plan in found] == [3, 6, 9]


@pytest.mark.parametrize("rounds", ["0,5,3", "0,0,1", "1,2,3", "0,1,2,3", "0,1", "a,b", "0,1.5,2"])
def test_fedseq_refuses_bad_rounds(flat_config, rounds):
    with pytest.raises(RunError, match=r"fedseq.unfreeze-rounds = "):
        plans(flat_config, f'strategy="fedseq" fedseq.unfreeze-rounds="{rounds}"')


def test_perfreezeclip_trains_one_part_at_a_time_and_all_in_the_last_round(flat_config):
    found = plans(flat_config, 'strategy="perfreezeclip" local-epochs=5 num-rounds=3')
    body = ("conv1", "conv2", "fc1")
    for plan in found[:-1]:
        assert [(stage.layers, stage.epochs) for stage in plan.stages] == [(("fc2",), 2), (body, 3)]
        assert plan.upload == plan.download == body
        assert {(s.clip.percentile, s.clip.max_norm) for s in plan.stages} == {(75, 10)}
    assert [(stage.layers, stage.epochs) for stage in found[-1].stages] == [((*body, "fc2"), 5)]


@pytest.mark.parametrize(
    ("ratio", "epochs", "expected"),
    [(0.5, 5, (3, 2)), (0.8, 5, (4, 1)), (0.05, 5, (1, 4)), (0.95, 5, (4, 1)), (0.5, 2, (1, 1))],
)
def test_perfreezeclip_rounds_half_up_to_an_epoch_at_least(flat_config, ratio, epochs, expected):
    options = f'strategy="perfreezeclip" local-epochs={epochs} perfreezeclip.freeze-ratio={ratio}'
    plan = plans(flat_config, options + " num-rounds=2")[0]
    assert tuple(stage.epochs for stage in plan.stages) == expected


def test_perfreezeclip_with_ratio_0_or_1_has_one_stage(flat_config):
    for ratio, layers in ((0.0, ("conv1", "conv2", "fc1")), (1.0, ("fc2",))):
        plan = plans(flat_config, f'strategy="perfreezeclip" perfreezeclip.freeze-ratio={ratio}')[0]
        assert [stage.layers for stage in plan.stages] == [layers]


def test_perfreezeclip_sends_phi_and_history_survives_rounds(serial_run, read_csv, fits):
    folder = serial_run(
        'strategy="perfreezeclip" num-rounds=3 local-epochs=2 fraction-train=1.0 '
        "perfreezeclip.final-round-full=false"
    )
    phi = SIZE["conv1"] + SIZE["conv2"] + SIZE["fc1"]
    assert [int(row["bytes_up"]) for row in read_csv(folder, "rounds.csv")] == [4 * phi * 6] * 3
    clipping = "75-batch-10000"  # of the defaults
    steps: dict[int, int] = {}
    for _, state, request, update in fits:
        client = request.client
        steps[client] = steps.get(client, 0) + update.metrics["batches"] // 2
        for layers in ("fc2", "conv1+conv2+fc1"):
            assert len(state[f"norms/{layers}/{clipping}"]) == steps[client]
        assert set(state) == {"model/fc2.fc.weight", "model/fc2.fc.bias", f"norms/fc2/{clipping}",
                              f"norms/conv1+conv2+fc1/{clipping}"}  # fmt: skip


BAD = ("freeze-ratio=1.5", "freeze-ratio=-0.1", "clip-percentile=101.0", "clip-percentile=-1.0")


@pytest.mark.parametrize("option", [*BAD, "max-norm=-1.0"])
def test_bad_values_are_refused(flat_config, option):
    with pytest.raises(RunError, match=option.partition("=")[0]):
        plans(flat_config, f'strategy="perfreezeclip" perfreezeclip.{option}')


def test_one_epoch_cannot_be_divided(flat_config):
    with pytest.raises(RunError, match=r"freeze-ratio = 0.4: one local epoch cannot be divided"):
        plans(flat_config, 'strategy="perfreezeclip" local-epochs=1')


def test_sample_mode_is_refused_before_the_start_where_batchnorm_is_trained(flat_config):
    """On lenet5 the body has BatchNorm; on cnn per-sample clipping runs in both stages."""
    run = 'strategy="perfreezeclip" clip-mode="sample" local-epochs=2'
    with pytest.raises(RunError, match=r'clip-mode = "sample".*BatchNorm2d'):
        run_serial(flat_config(run + ' model="lenet5"'))


@pytest.mark.parametrize(("options", "said"), [
    ('strategy="fedseq" fedseq.unfreeze-rounds="0,2,4" num-rounds=3', "1 of 3 parts stay froz"),
    ('strategy="fedprox" prox-mu=0.0', "prox-mu = 0, so this is fedavg"),
    ('strategy="fedfomo" fedfomo.models=0', "every client trains alone"),
    ('strategy="perfreezeclip" perfreezeclip.freeze-ratio=1.0', "the body is never trained"),
])  # fmt: skip
def test_a_setting_that_leaves_a_method_without_effect_is_said(flat_config, capsys, options, said):
    plans(flat_config, options)
    out = capsys.readouterr().out
    assert out.startswith("warning: ") and said in out
    plans(flat_config, 'strategy="fedseq" num-rounds=3')
    assert not capsys.readouterr().out
