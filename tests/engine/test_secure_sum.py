"""Runs with `secure-sum`: the numbers of the plain sum on every engine, and who may be missing."""

import re
from functools import partial

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ConfigRecord

from fedapps import client_app
from fedapps.core.errors import RunError
from fedapps.core.schema import literal
from fedapps.device.device import Device
from fedapps.engine import masking
from fedapps.engine.rounds import Rounds
from fedapps.secure.client import FILE, SumClient
from fedapps.secure.shamir import SHARE
from fedapps.serial import run_serial
from fedapps.wire.arrays import MASKED
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.serial_grid import SerialGrid
from tests.support.devices import node_configs
from tests.support.fake_grid import alter_replies
from tests.support.missing import failing

CLIENTS = 6
RUN = (
    f'strategy="fedavg" secure-sum=true num-clients={CLIENTS} fraction-train=1.0 num-rounds=2 '
    "evaluate-every=0"
)


@pytest.fixture
def run(serial_run):
    """Return run(*options, **arguments) -> run directory; clients that fail do not end the run."""
    return partial(serial_run, RUN)


@pytest.fixture
def device_run(flat_config, no_plots, tmp_path, make_npz):
    """Return run(count, *options) -> run directory, of so many devices with data of their own."""

    def run(count, *options):
        data = [
            make_npz(tmp_path / f"{client}.npz", train=40 + client, seed=client)
            for client in range(count)
        ]
        nodes = node_configs(data, tmp_path)
        keys = f'dataset="device" input-shape="1,8,8" num-classes=3 num-clients={count}'
        return run_serial(flat_config(RUN, keys, "batch-size=8", *options), node_configs=nodes)

    return run


@pytest.fixture
def uploads(monkeypatch):
    """What clients would upload without masks, by round and client: (arrays, sample count)."""
    seen = {}

    def masked(update, request, space, store):
        seen[request.plan.round, request.client] = dict(update.arrays), update.num_examples
        return masking.masked(update, request, space, store)

    monkeypatch.setattr(client_app, "masked", masked)
    return seen


def plain_mean(uploads, round_, without=()):
    """The mean of a round's uploads in fixed point: exact sums of numbers rounded to 2^-24.

    A float32 times the number of samples has at most 24 + 8 digits, so float64 holds it exactly.
    """
    those = [own for (r, client), own in uploads.items() if r == round_ and client not in without]
    weight = sum(count for _, count in those)
    assert max(count for _, count in those) < 2**8

    def mean(key):
        parts = [np.rint(arrays[key].astype(float) * n * 2.0**24) for arrays, n in those]
        total = sum(part.astype(np.int64) for part in parts)
        return (total / (2.0**24 * weight)).astype(np.float32)

    return {key: mean(key) for key in those[0][0]}


def is_mean(model, mean):
    assert mean
    for key, values in mean.items():
        assert model[key].dtype == np.float32 and (model[key] == values).all(), key


@pytest.mark.parametrize("strategy", ["fedavg", "fedper", "fedbn"])
def test_a_run_has_the_numbers_of_the_plain_sum(strategy, run, uploads, read_model, read_rounds):
    """And nearly those of floating-point sums; no secret is left."""
    folder = run(f'strategy="{strategy}" model="lenet5"')
    is_mean(read_model(folder), plain_mean(uploads, 2))
    assert len(uploads) == 2 * CLIENTS
    plain = run(f'strategy="{strategy}" model="lenet5" secure-sum=false')
    for key, values in read_model(plain).items():
        np.testing.assert_allclose(read_model(folder)[key], values, rtol=1e-4, atol=1e-5)
    assert not [*folder.rglob(f"*{FILE}*")] and not [*folder.rglob("*.tmp")]
    states = {path.parent.name for path in folder.glob("clients/*/*")}
    assert states == ({*map(str, range(CLIENTS))} if strategy != "fedavg" else set())
    entries = 1 + sum(values.size for values in uploads[2, 0][0].values())
    for row, other in zip(read_rounds(folder), read_rounds(plain), strict=True):
        keys, box, share = 64 + 16, 148 + 3, 66 + 3  # in msgpack, with names
        more = CLIENTS * (keys + CLIENTS * (box + share))
        assert 0 < row["bytes_up"] - 8 * CLIENTS * entries <= more
        assert row["bytes_down"] - other["bytes_down"] > 0


def test_with_local_noise_the_sum_tells_no_sample_count(run, uploads, read_model):
    """All clients weigh the same; the values are those that each has sent with its noise."""
    quiet = "dp.clip-norm=0.1 dp.noise-multiplier=0.01 dp.secret-noise=true"
    folder = run(f'dp.mode="local" {quiet} num-rounds=1')
    assert len({count for _, count in uploads.values()}) > 1
    equal = {key: (arrays, 1) for key, (arrays, _) in uploads.items()}
    is_mean(read_model(folder), plain_mean(equal, 1))


def test_what_the_server_gets_is_not_what_a_client_uploads(run, uploads, monkeypatch):
    """Each vector is a random one: it has the first bit in half of its entries, not in few."""
    seen, pull = [], SerialGrid.pull_messages

    def watched(grid, message_ids):
        replies = pull(grid, message_ids)
        for reply in replies:
            if reply.metadata.message_type == "train":
                seen.extend(record for record in reply.content.array_records.values())
        return replies

    monkeypatch.setattr(SerialGrid, "pull_messages", watched)
    run("num-rounds=1")
    assert len(seen) == CLIENTS
    for record in seen:
        assert [*record] == [MASKED]
        words = record[MASKED].numpy()
        assert words.dtype == np.uint64 and len({*words.tolist()}) == len(words)
        assert abs((words >> np.uint64(63)).mean() - 0.5) < 0.1


def test_devices_keep_their_secrets_in_their_own_folder(
    device_run, tmp_path, monkeypatch, uploads, read_model, read_csv
):
    failing(monkeypatch, {"train": [3]})
    folder = device_run(4)
    is_mean(read_model(folder), plain_mean(uploads, 2, without=[3]))
    left = [path for path in tmp_path.rglob(f"*{FILE}*")]
    assert [path.relative_to(tmp_path).parts[0] for path in left] == ["state-3"]
    assert left[0].parent.stat().st_mode & 0o077 == 0
    assert [row["client"] for row in read_csv(folder, "events.csv")] == ["3"]


# Who is missing -----------------------------------------------------------------------------

MISSING = {
    "keys": {"keys": [0, 5]},
    "shares": {"shares": [4]},
    "training": {"train": [1, 2]},
    "unmasking": {"unmask": [0, 3]},
    "two steps": {"train": [1], "unmask": [0]},
}


@pytest.mark.parametrize(("options", "hidden"), [
    ("", True),
    ('dp.mode="distributed" dp.noise-multiplier=0.01', True),
    ('secure-sum=false dp.mode="local" dp.noise-multiplier=0.01', True),
    ("secure-sum=false", False),
])  # fmt: skip
@pytest.mark.parametrize(("method", "name"), [("fedper", "model/"), ("fedavg", "")])
def test_a_failure_tells_the_server_no_number_of_a_protected_update(
    method, name, options, hidden, device_run, tmp_path
):
    """Of a personal layer or a masked update, only the device's own log says how large it is."""
    with pytest.raises(RunError, match="training diverged: ") as caught:
        device_run(3, f'strategy="{method}" max-value=0.02', options)
    told = str(caught.value)
    logs = [path.read_text("utf-8") for path in tmp_path.rglob("state*/**/log.txt")]
    assert len(logs) == 3
    large = re.compile(r"training diverged: (\S+) is as large as ([\d.]+): at most 0\.02")
    for text in logs:
        key, size = large.search(text).groups()
        assert key.startswith(name) and float(size) > 0.02
    assert bool(large.search(told)) is not hidden
    if hidden:
        where = r"what stays on the client" if method == "fedper" else r"[\w.]+"
        log = "how large is in the client's own log"
        line = rf"training diverged: {where} is too large: at most 0\.02 \(max-value\), {log}"
        assert re.search(line, told)


@pytest.mark.parametrize("steps", MISSING.values(), ids=MISSING)
def test_up_to_a_third_may_be_missing(steps, run, uploads, monkeypatch, read_model, read_csv):
    """Those that have uploaded count; the others are failures of the round."""
    failing(monkeypatch, steps)
    folder = run()
    gone = sorted(c for step, clients in steps.items() if step != "unmask" for c in clients)
    is_mean(read_model(folder), plain_mean(uploads, 2, without=gone))
    events = read_csv(folder, "events.csv")
    kinds = {"failure": gone, "unanswered": steps.get("unmask", [])}
    for kind, clients in kinds.items():
        rows = [row for row in events if row["kind"] == kind]
        assert [int(row["client"]) for row in rows] == clients
        assert all(row["round"] == "2" and "OSError: no " in row["detail"] for row in rows)


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ({"keys": range(4)}, "client 0: secure sum, keys: OSError: no keys"),
        ({"shares": [0, 1, 2]}, "client 0: secure sum, shares: OSError: no shares"),
        ({"train": [1, 3, 5]}, "client 0: secure sum: 3 clients are left, and it needs 4"),
        ({"unmask": [1, 3, 5]}, "client 0: secure sum: 3 clients are left, and it needs 4"),
    ],
    ids=["keys", "shares", "training", "unmasking"],
)
def test_a_run_ends_if_more_are_missing(steps, cause, run, monkeypatch):
    failing(monkeypatch, steps)
    with pytest.raises(RunError, match=f"round 2: 6 of 6 clients failed .*{cause}"):
        run()


def test_a_round_from_which_too_many_drop_out_trains_nobody(
    run, uploads, read_csv, read_rounds, read_model
):
    """One with two clients is like one without clients, and no reason to end the run."""
    folder = run("devices=lognormal dropout=0.55 num-rounds=5 seed=200")
    events = read_csv(folder, "events.csv")
    gone = [int(event["round"]) for event in events if event["kind"] == "dropout"]
    there = [CLIENTS - gone.count(round_) for round_ in range(1, 6)]
    assert there == [3, 1, 0, 3, 2]
    found = [(row["clients"], row["failures"], row["bytes_up"] > 0) for row in read_rounds(folder)]
    assert found == [(n, 0, True) if n >= 3 else (0, 0, False) for n in there]
    without = [(int(e["round"]), e["detail"]) for e in events if e["kind"] == "no-sum"]
    assert without == [
        (2, "1 client there, and it needs 3"), (5, "2 clients there, and it needs 3")
    ]  # fmt: skip
    is_mean(read_model(folder), plain_mean(uploads, max(r for r, _ in uploads)))


def test_a_round_without_a_sum_changes_nothing_on_devices(
    device_run, monkeypatch, uploads, read_model, read_rounds
):
    """Three times in a row, all devices may fail."""
    failing(monkeypatch, {"shares": [1]})
    folder = device_run(3)
    assert [row["failures"] for row in read_rounds(folder)] == [0, 3]
    is_mean(read_model(folder), plain_mean(uploads, 1))


def test_a_round_waits_three_times_at_most(run, monkeypatch):
    """For training, for evaluation, and for the three other steps together."""
    waits, send = {}, StreamingGrid.send_and_receive

    def sent(grid, messages, *, timeout=None):
        messages = list(messages)
        waits.setdefault(messages[0].metadata.message_type, []).append(timeout)
        return send(grid, messages, timeout=timeout)

    monkeypatch.setattr(StreamingGrid, "send_and_receive", sent)
    run("num-rounds=1 evaluate-every=1 round-timeout=300.0")
    assert waits == {"query.step": [100.0] * 3, "train": [300.0], "evaluate": [300.0]}


# Who lies -----------------------------------------------------------------------------------


@pytest.fixture
def claiming(device_run, monkeypatch):
    """Return run(clients, count): five devices, and what some first claim of their samples."""

    def run(clients, count):
        left, greet = [*clients], Device.hello

        def claimed(device, *others):
            hello = greet(device, *others)
            if device.client not in left:
                return hello
            left.remove(device.client)
            return msgspec.structs.replace(hello, train=count)

        monkeypatch.setattr(Device, "hello", claimed)
        return device_run(5, 'run-name="x"')

    return run


def test_a_device_that_claims_too_many_samples_loses_the_round(
    claiming, uploads, read_model, read_csv
):
    """And comes back with another claim; the others' sum is that without it."""
    folder = claiming([1], 2_000_000)
    (failure,) = read_csv(folder, "events.csv")
    assert (failure["round"], failure["kind"], failure["client"]) == ("1", "failure", "1")
    assert failure["detail"] == (
        "secure sum: it says that it has 2000000 samples; with max-value = 1e+06 it must have"
        " fewer than 109952"  # 2^39 / 5 / 1e6, rounded up
    )
    assert {c for r, c in uploads if r == 1} == {0, 2, 3, 4} < {c for r, c in uploads if r == 2}
    is_mean(read_model(folder), plain_mean(uploads, 2))


def test_a_large_federation_is_told_the_key_before_it_trains(claiming, uploads):
    with pytest.raises(RunError, match=r"^max-value = 1e\+06: with secure-sum it must be below "):
        claiming([0, 2, 3], 200_000)
    assert not uploads


@pytest.fixture
def lying(run, monkeypatch):
    """Return run(type, change, *options): `change` alters all replies of a message type."""

    def lying_run(kind, change, *options):
        alter_replies(monkeypatch, kind, change)
        return run("num-rounds=1", *options)

    return lying_run


def vector(change):
    """Alter what client 2 uploads: its integers."""

    def altered(content):
        record = content["arrays-2"]
        record[MASKED] = Array(change(record[MASKED].numpy().copy()))

    return altered


BAD_VECTORS = {
    "too short": (lambda v: v[:-1], "expected"),
    "too long": (lambda v: np.append(v, v), "expected"),
    "float32": (lambda v: v.astype(np.float32), "expected"),
    "int64": (lambda v: v.view(np.int64), "expected uint64"),
}


def test_a_vector_of_another_kind_costs_its_client(lying, uploads, read_csv, read_model):
    """Another one in each round."""
    left, rounds = iter(BAD_VECTORS.values()), len(BAD_VECTORS)
    folder = lying("train", lambda content: vector(next(left)[0])(content), f"num-rounds={rounds}")
    events = read_csv(folder, "events.csv")
    assert [(e["round"], e["client"]) for e in events] == [(f"{r + 1}", "2") for r in range(rounds)]
    for event, (_, cause) in zip(events, BAD_VECTORS.values(), strict=True):
        assert cause in event["detail"]
    is_mean(read_model(folder), plain_mean(uploads, rounds, without=[2]))


def larger(words):
    words[1:2] += np.uint64(2**62)
    return words


MASKS_LEFT = r"masks are left \(a weight of .*\): a client lies"
NO_SUMS = [
    (lambda words: words + np.uint64(2**40), MASKS_LEFT),
    (larger, r"the mean of .* is as large as .*at most 1e\+06"),
]


@pytest.mark.parametrize(("change", "why"), NO_SUMS)
def test_a_liar_whom_the_masks_hide_costs_the_round_and_names_nobody(
    change, why, lying, uploads, read_csv, read_rounds, read_model, capsys
):
    """However often: the others have not failed."""
    changes = iter([lambda words: words, *[change] * 4])
    folder = lying("train", lambda content: vector(next(changes))(content), "num-rounds=5")
    events = read_csv(folder, "events.csv")
    found = [(e["round"], e["client"], e["kind"]) for e in events]
    assert found == [(f"{r}", "server", "no-sum") for r in range(2, 6)]
    assert all(re.match(why, event["detail"]) for event in events)
    assert [row["failures"] for row in read_rounds(folder)] == [0] * 5
    is_mean(read_model(folder), plain_mean(uploads, 1))
    assert re.search(f"warning: round 2: no sum: {why}", capsys.readouterr().out)


@pytest.mark.parametrize(("change", "why"), NO_SUMS)
def test_a_run_in_which_no_round_has_a_sum_fails_at_its_end(change, why, lying):
    with pytest.raises(RunError, match=f"^round 2: no round had a sum: {why}"):
        lying("train", vector(change), "num-rounds=2")


@pytest.mark.parametrize("gone", [[], [1]])
def test_false_shares_cost_the_round(gone, run, monkeypatch, uploads, read_csv, read_model):
    failing(monkeypatch, {"train": gone})
    unmask = SumClient._unmask

    def false(own, request):
        answer = msgspec.msgpack.decode(unmask(own, request))
        if own.client == 0 and own.round == 2:
            answer = {client: bytes(SHARE) for client in answer}
        return msgspec.msgpack.encode(answer)

    monkeypatch.setattr(SumClient, "_unmask", false)
    folder = run()
    found = [(e["client"], e["kind"]) for e in read_csv(folder, "events.csv")]
    assert sorted(found) == [*((f"{c}", "failure") for c in gone), ("server", "no-sum")]
    is_mean(read_model(folder), plain_mean(uploads, 1))


@pytest.mark.parametrize("bytes_", [b"", b"\x00", [1.0], "text"])
def test_a_broken_answer_costs_its_client(bytes_, lying, uploads, read_csv, read_model):
    def change(content):
        content["answer-2"] = ConfigRecord({"bytes": bytes_})

    folder = lying("query.step", change)
    (event,) = read_csv(folder, "events.csv")
    assert event["client"] == "2" and event["detail"].startswith("secure sum, keys: its answer")
    is_mean(read_model(folder), plain_mean(uploads, 1, without=[2]))


# What does not fit --------------------------------------------------------------------------

REFUSED = {
    'strategy="scaffold"': "this strategy needs more than the mean of the updates",
    'strategy="fedamp"': "this strategy needs more than the mean of the updates",
    'strategy="local"': "clients upload nothing",
    'aggregation="median"': "aggregation = median needs every client's update; use",
    "presum=true": "presum = true needs every client's update; use presum=false",
    'dp.mode="central"': "dp.mode = central needs every client's update; use dp.mode=none",
    'attack="alie" attackers=0.2': "attack = alie needs",
    'round-mode="async" devices="lognormal"': "round-mode = async needs",
    'deadline=1.0 devices="lognormal"': "deadline = 1 needs",
    'over-selection=0.5 devices="lognormal"': "over-selection = 0.5 needs",
    "fraction-train=0.4": "a round has 2 clients (fraction-train), and it needs 3 to 500",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_needs_single_updates_is_refused(options, run):
    with pytest.raises(RunError) as refused:
        run(options)
    assert str(refused.value).startswith(f"secure-sum = true: {REFUSED[options]}")


def test_values_that_could_overflow_are_refused(run):
    with pytest.raises(RunError, match=r"^max-value = 1e\+12: with secure-sum it must be below"):
        run("max-value=1e12")


LOCAL = 'dp.mode="local" dp.noise-multiplier=0.01'
SHARED_OUT = 'dp.mode="distributed" dp.noise-multiplier=0.01'
SECRET = "dp.secret-noise=true"


@pytest.mark.parametrize(("options", "warned"), [
    ((), True), ((SHARED_OUT,), True), (("secure-sum=false",), False),
    ((SHARED_OUT, SECRET), False), ((LOCAL, SECRET), False),
])  # fmt: skip
def test_who_resumes_is_told_that_two_sums_of_a_round_may_differ_by_one_update(
    options, warned, run, tmp_path, monkeypatch, capsys
):
    """What is repeated is computed from the same state, so only secret noise differs."""
    aggregate = Rounds.aggregate_train

    def stop(rounds, round_, replies):
        aggregate(rounds, round_, replies)
        if round_ == 2:
            raise RunError("no more")

    monkeypatch.setattr(Rounds, "aggregate_train", stop)
    with pytest.raises(RunError, match="no more"):
        run(*options, 'run-name="x"')
    monkeypatch.setattr(Rounds, "aggregate_train", aggregate)
    told = []
    for more in ("", "num-rounds=3"):  # of a finished run, no round is repeated
        capsys.readouterr()
        run(*options, f'resume="{tmp_path}/runs/x"', more)
        told.append([line for line in capsys.readouterr().out.splitlines() if "two sums" in line])
    assert [len(lines) for lines in told] == [int(warned), 0]
    if warned:
        assert told[0][0] == (
            "warning: secure-sum: if a device is missing from a round that is repeated, the server"
            " can subtract the two sums and has its update; begin a new run with another seed, or"
            ' with dp.mode="distributed" and dp.secret-noise=true'
        )


@pytest.mark.parametrize(
    "options",
    [
        'dp.mode="local" dp.clip-norm=1.0 dp.noise-multiplier=0.5',
        'server-optimizer="adam" server-lr=0.01',
        'attack="sign-flip" attackers=0.2 attack-scale=1.0',
        'devices="lognormal"',
        'unseen-clients="0.15" num-clients=7',
    ],
)
def test_what_needs_no_single_update_has_the_numbers_of_a_plain_run(options, run, read_model):
    found, plain = (read_model(run(options, f"secure-sum={literal(on)}")) for on in (True, False))
    for key, values in plain.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-3, atol=1e-4)
