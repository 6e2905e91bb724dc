"""Virtual time: its seconds, and who counts, are what the counted work and the devices say."""

import math

import numpy as np
import pytest

from fedapps.core import config, registry
from fedapps.core.draws import sample_clients
from fedapps.core.errors import RunError
from fedapps.engine.clocks import clock
from fedapps.engine.finished import FinishedRun
from fedapps.engine.on_its_way import Answer
from fedapps.engine.profiles import read
from fedapps.engine.store import ClientStore, state_folders
from fedapps.method.update import ClientUpdate
from fedapps.serial import run_serial
from fedapps.training.workspace import Workspace
from tests.support.fits import hooked
from tests.support.killed import differences

SPEEDS = {
    "macs": [1e5, 2e5, 5e4, 4e5, 3e4, 8e4],
    "down": [1e5, 2e5, 5e4, 1e5, 1e5, 3e4],
    "up": [5e4, 1e5, 5e4, 2e4, 5e4, 1e4],
}
MIXED = "num-clients=6 num-rounds=4"


@pytest.fixture
def devices(tmp_path):
    """Return write(server=, **speeds) -> the key `devices` for a device of its own per client."""

    def write(server=math.inf, **speeds):
        known = SPEEDS | speeds
        path = tmp_path / "devices.toml"
        lines = [f"[server]\nmacs = {server}"]
        for client, values in enumerate(zip(*known.values(), strict=True)):
            own = [f"{key} = {value}" for key, value in zip(known, values, strict=True)]
            lines += ["[[device]]", f'name = "d{client}"', f'clients = "{client}"', *own]
        path.write_text("\n".join(lines))
        return f'devices="{path}"'

    return write


@pytest.fixture
def run(flat_config, no_plots):
    """Return run(*options, **arguments) -> run directory; arguments are those of `run_serial`."""

    def run(*options, **arguments):
        flat = flat_config(MIXED, 'strategy="fedavg" model="mlp"', *options)
        return run_serial(flat, **arguments)

    return run


def seconds_of(fits, layout):
    """How long each training took, {(round, client): seconds}, from what a recorder has noted."""
    found = {}
    for _, _, request, update in fits:
        client = request.client
        size = {name: 4 * math.prod(shape) for name, shape in layout.shapes.items()}
        down = sum(size[name] for name in request.plan.down(layout))
        up = sum(size[name] for name in request.plan.up(layout))
        macs = update.metrics["macs"]
        work = {"down": down, "macs": macs, "up": up}
        found[request.plan.round, client] = sum(n / SPEEDS[k][client] for k, n in work.items())
    return found


def test_a_round_takes_as_long_as_its_slowest_client(run, devices, fits, workspace_of, read_rounds):
    """Independently: bytes of the arrays and the clients' own counts over the file's speeds."""
    folder = run(devices(), 'strategy="fedrep"')
    took = seconds_of(fits, workspace_of(folder).layout)
    ends, now = [], 0.0
    for round_ in range(1, 5):
        now += max(seconds for (r, _), seconds in took.items() if r == round_)
        ends.append(now)
    assert [row["virtual_seconds"] for row in read_rounds(folder)] == pytest.approx(ends, rel=1e-12)


# Who counts, and what becomes of those who are late ------------------------------------------


def replayed(fits, space, rounds, need=100, limit=math.inf, later=False, buffered=False):
    """What a run must have computed: its model, the ends of its rounds, and each round's staleness.

    A round ends when `need` of the clients that it asked (`buffered`: of all at work) have come. If
    all are at work, so that none can be asked, it ends when the first has come. Statistics of
    BatchNorms go a part of the way from the server's value to the client's.
    """
    statistics = space.layout.norms - space.layout.parameters
    took = seconds_of(fits, space.layout)
    sent = {(request.plan.round, request.client): update for _, _, request, update in fits}
    model = {key: value.astype(np.float64) for key, value in space.initial.items()}
    now, flying, ends, staleness = 0.0, [], [], []
    for round_ in range(1, rounds + 1):
        for r, client in took:
            if r == round_:
                update = sent[r, client]
                begun = {key: 0.0 if key in statistics else model[key] for key in model}
                change = {key: update.arrays[key] - begun[key] for key in update.arrays}
                flying.append((now + took[r, client], client, r, update.num_examples, change))
        flying.sort(key=lambda one: one[:2])
        waited_for = [one for one in flying if buffered or one[2] == round_]
        last = (waited_for[:need] or flying[:1])[-1][0]
        now = min(max(now, last), now + limit)
        come = [one for one in flying if one[0] <= now and one not in waited_for[need:]]
        total = sum(one[3] for one in come)
        for key, old in model.items():
            there = old if key in statistics else 0.0
            model[key] = old + sum(
                one[3] / total * (one[4][key] - there) / math.sqrt(1 + round_ - one[2])
                for one in come
            )
        flying = [one for one in flying if one not in come] if later else []
        ends.append(now)
        staleness.append(sorted((one[1], round_ - one[2]) for one in come))
    return model, ends, staleness


CASES = [
    ("fraction-train=1.0 deadline=3.0", {"limit": 3.0}),
    ("fraction-train=1.0 deadline=3.0 late=later", {"limit": 3.0, "later": True}),
    ("fraction-train=1.0 deadline=0.9 late=later", {"limit": 0.9, "later": True}),
    ("over-selection=0.5", {"need": 3}),
    ("over-selection=0.5 late=later deadline=3.0", {"need": 3, "limit": 3.0, "later": True}),
    (
        "round-mode=async fraction-train=0.8 buffer=2",
        {"need": 2, "later": True, "buffered": True},
    ),
    ("round-mode=async fraction-train=1.0 buffer=1", {"need": 1, "later": True, "buffered": True}),
    (
        'model="lenet5" local-epochs=8 batch-size=4 round-mode=async fraction-train=1.0 buffer=2',
        {"need": 2, "later": True, "buffered": True},
    ),
]


@pytest.mark.parametrize(("options", "rule"), CASES)
def test_the_model_is_made_of_the_updates_that_count(
    options, rule, run, devices, fits, workspace_of, read_rounds, read_model, read_csv
):
    folder = run(devices(), options, "num-rounds=6 evaluate-every=0")
    model, ends, staleness = replayed(fits, workspace_of(folder), 6, **rule)
    assert [r["virtual_seconds"] for r in read_rounds(folder)] == pytest.approx(ends, rel=1e-12)
    for key, array in read_model(folder).items():
        np.testing.assert_allclose(array, model[key], rtol=0, atol=2e-6)
        assert not key.endswith("running_var") or array.min() >= 0
    noted = [
        (int(e["round"]), int(e["client"]), int(e["detail"]))
        for e in read_csv(folder, "events.csv")
        if e["kind"] == "staleness"
    ]
    rounds = enumerate(staleness, 1)
    expected = [(r, client, late) for r, come in rounds for client, late in come]
    if "async" not in options:  # there, only what is late is an event
        expected = [one for one in expected if one[2]]
    assert noted == expected
    assert not rule.get("later") or max(late for *_, late in noted) > 0


def test_a_buffer_of_the_whole_cohort_on_equal_devices_is_fedavg(
    run, devices, untimed_rounds, read_model
):
    """To the last bit."""
    equal = devices(**{key: [1e5] * 6 for key in SPEEDS})
    both = [run(equal), run(equal, "round-mode=async buffer=3")]
    sync, buffered = map(untimed_rounds, both)
    assert sync == buffered
    left, right = map(read_model, both)
    assert all((left[key] == right[key]).all() for key in left)


def test_who_drops_out_is_asked_but_never_trains(run, devices, fits, read_csv, read_rounds):
    """It costs no time without a deadline; with one, the server waits for it until then."""
    folder = run(devices(), "dropout=0.4 num-rounds=8 deadline=1000.0 evaluate-every=0")
    trained = {(request.plan.round, request.client) for _, _, request, _ in fits}
    gone = {(int(e["round"]), int(e["client"])) for e in read_csv(folder, "events.csv")}
    chosen = {(r, c) for r in range(1, 9) for c in sample_clients(0, r, 6, 0.5)}
    assert not trained & gone and trained | gone == chosen and 3 < len(gone) < 18
    ends = [0.0, *(row["virtual_seconds"] for row in read_rounds(folder))]
    waited = {r for r in range(1, 9) if ends[r] - ends[r - 1] == pytest.approx(1000.0)}
    assert waited == {r for r, _ in gone} < {*range(1, 9)}
    assert {row["failures"] for row in read_rounds(folder)} == {0}
    again = run(devices(), 'strategy="fedper" dropout=0.4 num-rounds=8 evaluate-every=0')
    assert gone == {(int(e["round"]), int(e["client"])) for e in read_csv(again, "events.csv")}


@pytest.mark.parametrize(("options", "warned"), [
    ("deadline=0.01", ["round 1: all clients were late", "no update has counted in any round"]),
    ("deadline=1000.0", []),
    ("dropout=0.999999", ["no update has counted in any round"]),
    ("deadline=0.01 late=later", ["no update has counted in any round"]),
    ("deadline=0.01 strategy=centralized", []),  # the server learns
])  # fmt: skip
def test_it_is_said_if_no_update_counts(options, warned, run, devices, capsys, fits, workspace_of):
    """Once in a round, once at the end, and when the shared model is asked for."""
    folder = run(devices(), options, "fraction-train=1.0")
    told = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    told = [line for line in told if "late" in line or "counted" in line]
    assert [any(text in line for line in told) for text in warned] == [True] * len(told)
    assert len(told) == len(warned)
    if options == "deadline=0.01":
        took = seconds_of(fits, workspace_of(folder).layout)
        fastest = min(seconds for (round_, _), seconds in took.items() if round_ == 1)
        assert f"the fastest took {fastest:.3g} virtual seconds; deadline = 0.01 is" in told[0]
        resumed = run_serial(config.parse([f'resume="{folder}" num-rounds=5']))
        assert "nothing was learned: use a longer deadline" in capsys.readouterr().out
        with pytest.raises(RunError, match=r"no update has counted .* name a client"):
            FinishedRun.open(resumed).shared()
        assert FinishedRun.open(resumed).client(0)


def test_nobody_can_be_late_where_the_server_trains_alone(run, devices, untimed_rounds):
    options = ("", "deadline=0.01 dropout=0.5")
    one, two = (untimed_rounds(run(devices(1e6), "strategy=centralized", o)) for o in options)
    assert one == two and float(one[-1]["virtual_seconds"]) > 0.04


def test_only_available_clients_are_asked(run, devices, fits):
    there = devices(availability=[1, 1, 1, 0.5, 0.5, 1e-12])
    run(there, "fraction-train=0.6 num-rounds=30 evaluate-every=0")
    asked = [request.client for _, _, request, _ in fits]
    counts = np.bincount(asked, minlength=6)
    assert counts.sum() == 30 * 3  # always the cohort, for there are never fewer
    assert counts[5] == 0 and (counts[3:5] < counts[:3].min()).all() and counts[3:5].min() > 0


@pytest.mark.parametrize(("method", "kept", "mean"), [
    ("scaffold", "own/", "c/"), ("feddyn", "g/", "hbar/"),
])  # fmt: skip
def test_a_mean_over_all_clients_is_right_although_some_drop_out(
    method, kept, mean, run, devices, monkeypatch, read_csv
):
    """c is the mean of all c_i and hbar that of all g_i; a client that never answered has 0."""
    cls, made = registry.strategy_class(method), []
    setup = cls.setup
    monkeypatch.setattr(cls, "setup", lambda self: (made.append(self), setup(self))[1])
    folder = run(devices(), f'strategy="{method}" fraction-train=1.0 dropout=0.4')
    gone = [row["client"] for row in read_csv(folder, "events.csv") if row["kind"] == "dropout"]
    assert len({*gone}) > 3
    own = [ClientStore(one).load_version(5)[1] for one in state_folders(folder)]
    for name, found in made[-1].state.items():
        if name.startswith(mean):
            key = kept + name.removeprefix(mean)
            expected = sum(state[key].numpy().astype("f8") for state in own) / 6
            size = np.abs(expected).max()
            assert size > 0
            np.testing.assert_allclose(found, expected, atol=1e-5 * size)


def test_nobody_is_asked_while_more_clients_are_at_work_than_a_smaller_cohort_has(flat_config):
    """Of ten devices seven leave: two of the three others, of whom one may work, are at work."""
    flat = flat_config(REAL, 'num-clients=10 devices="lognormal" round-mode=async')
    strategy = registry.strategy_class("fedavg")(Workspace(config.read(flat)))
    ours = clock(strategy)
    for client in (3, 8):
        ours.on_their_way.keep(Answer(9.0, 1, ClientUpdate(client, {}, 5)), 1, {})
    for there, asked in (((0, 3, 8), 0), (range(6), 1), (range(10), 3)):
        strategy.devices.clear()
        strategy.devices |= {client: {} for client in there}
        free = ours.there(2)
        assert {*free} == {*there} - {3, 8}
        assert len({*ours.select(2, free)} & {*free}) == asked


@pytest.mark.parametrize("options", [
    "round-mode=async buffer=1 fraction-train=0.8", "deadline=0.5 late=later fraction-train=0.8",
])  # fmt: skip
def test_who_fails_ends_no_run_in_which_others_are_at_work(
    options, run, devices, monkeypatch, read_csv, read_rounds
):
    """One who diverges is asked again at once, so that a round may ask nobody else."""
    bad, failing = {2, 3}, [2, 3]

    def loss(client, own, logits, labels):
        return own(logits, labels) * (math.nan if client.client in failing else 1.0)

    hooked(monkeypatch, "fedavg", "loss", loss)
    folder = run(devices(), options, "num-rounds=20 evaluate-every=0")
    rows, events = read_rounds(folder), read_csv(folder, "events.csv")
    assert {int(e["client"]) for e in events if e["kind"] == "failure"} == bad
    alone = {int(row["round"]) for row in rows if 0 < row["clients"] == row["failures"]}
    assert len(rows) == 20 and alone
    counted = {int(e["round"]) for e in events if e["kind"] == "staleness"}
    assert alone & counted
    failing[:] = range(6)
    with pytest.raises(RunError, match=r"^round 1: 4 of 4 clients failed \(all failed\)"):
        run(devices(), options)


# The same on every engine, and after a kill ---------------------------------------------------

OPTIONS = [
    "fraction-train=1.0 deadline=3.0 late=later",
    "over-selection=0.5 dropout=0.3",
    "round-mode=async fraction-train=1.0 buffer=2",
]


@pytest.mark.parametrize("options", OPTIONS[1:])
def test_workers_see_the_same_time(options, run, devices):
    assert differences(run(devices(), options), run(devices(), options, workers=2)) == []


@pytest.mark.parametrize("options", OPTIONS)
def test_a_resumed_run_has_the_time_and_the_updates_on_their_way(options, run, devices):
    whole = run(devices(), options)
    killed = run(devices(), options, "num-rounds=2")
    assert differences(whole, run_serial(config.parse([f'resume="{killed}" num-rounds=4']))) == []


def test_a_resumed_run_needs_the_same_devices(run, devices):
    killed = run(devices(), "num-rounds=2")
    devices(macs=[1.0] * 6)  # the same file
    with pytest.raises(RunError, match=r"the devices are not those that the run began with$"):
        run_serial(config.parse([f'resume="{killed}" num-rounds=4']))


# What does not fit ----------------------------------------------------------------------------


@pytest.fixture
def refusal(flat_config, devices):
    """Return ask(*options) -> why the clock of a run is refused, "" if it is not."""

    def ask(*options, devices=devices()):  # noqa: B008 (a fixture)
        flat = flat_config('strategy="fedavg" model="lenet5"', devices, *options)
        settings = config.read(flat)
        strategy = registry.strategy_class(settings.strategy)(Workspace(settings))
        try:
            clock(strategy)
        except RunError as error:
            return str(error)
        return ""

    return ask


@pytest.mark.parametrize(("options", "why"), [
    ("deadline=5.0", ""),
    ("deadline=5.0 round-mode=async", "deadline = 5: not with"),
    ("deadline=5.0 presum=true", "presum = true: deadline = 5 needs every client's update"),
    ("presum=true", ""),
    ("round-mode=async buffer=4", "buffer = 4: must be at most the 3 clients"),
    ("round-mode=async dp.mode=central", 'round-mode = "async": not with dp.mode'),
    ("round-mode=async dp.mode=local", ""),
    ("deadline=5.0 dp.mode=central", ""),
    ("deadline=5.0 late=later dp.mode=central", 'late = "later": not with dp.mode'),
    ('over-selection=0.2 strategy="local"', "over-selection = 0.2: local selects its clients"),
    ('deadline=5.0 strategy="scaffold"', "deadline = 5: scaffold keeps a mean over all clients (c"),
    ('over-selection=0.2 strategy="feddyn"', "over-selection = 0.2: feddyn keeps a mean over all"),
    ('deadline=5.0 late=later strategy="feddyn"', "deadline = 5: feddyn keeps a mean over all"),
    ('round-mode=async strategy="scaffold"', 'round-mode = "async": scaffold does more than'),
    ('dropout=0.5 strategy="scaffold"', ""),
    ('round-mode=async strategy="fedseq"', ""),
    ('round-mode=async strategy="fedper" aggregation="median"', ""),
    ('deadline=5.0 strategy="fedseq" aggregation="median"', ""),
    (
        'deadline=5.0 late=later strategy="fedseq" aggregation="median"',
        'aggregation = "median": not with late = "later", as fedseq exchanges other layers later',
    ),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(options, why, refusal):
    said = refusal(options)
    assert said.startswith(why) if why else said == ""


def test_without_devices_nothing_depends_on_time(refusal):
    for option in ("deadline=5.0", "over-selection=0.2", "dropout=0.2", "round-mode=async"):
        assert "needs virtual time" in refusal(option, devices="")
    assert refusal(devices="") == ""


REAL = 'dataset="device" input-shape="1,8,8" num-classes=3'


@pytest.mark.parametrize("option", ["deadline=5.0", "over-selection=0.2", "round-mode=async"])
def test_on_real_devices_assumed_speeds_do_not_decide_unnoticed(option, refusal, capsys):
    assert "round-timeout ends a round of real devices" in refusal(REAL, option, devices="")
    assert refusal(REAL) == "" and "warning" not in capsys.readouterr().out
    assert refusal(REAL, option, 'strategy="fedavg"') == ""
    (line,) = [text for text in capsys.readouterr().out.splitlines() if "warning" in text]
    assert option.partition("=")[0] in line and "round-timeout" in line
    assert refusal(option) == "" and "warning" not in capsys.readouterr().out


# The file ---------------------------------------------------------------------------------------


def test_devices_are_drawn_by_share_and_spread():
    named = read("lognormal", 4000, 0)
    for values, median in ((named.macs, 5e9), (named.down, 2.5e6), (named.up, 6.25e5)):
        logs = np.log(values / median)
        assert abs(logs.mean()) < 0.06 and abs(logs.std() - 1) < 0.05
    assert (read("lognormal", 10, 0).macs == named.macs[:10]).all()  # more clients, the same ones
    assert (read("lognormal", 10, 1).macs != named.macs[:10]).all()


def test_shares_are_those_of_clients_that_no_device_names(tmp_path):
    path = tmp_path / "devices.toml"
    network = "down = 1.0\nup = 1.0\n"
    path.write_text(
        f'[[device]]\nname = "a"\nshare = 3\nmacs = 1\n{network}'
        f'[[device]]\nname = "b"\nmacs = 2\n{network}'
        f'[[device]]\nname = "c"\nclients = "1-2,9"\nmacs = 3\n{network}'
    )
    kind = read(str(path), 4000, 0).macs - 1
    assert [*np.flatnonzero(kind == 2)] == [1, 2, 9]
    assert abs((kind == 0).sum() / 3997 - 0.75) < 0.03


@pytest.mark.parametrize(("text", "why"), [
    ("[[device]]", "missing required field name"),
    ("device = []", r"must have a table \[\[device\]\]"),
    ('[[device]]\nname = "a"\nmacs = 0\ndown = 1\nup = 1', r"float > 0\.0 - at .*\.macs$"),
    ('[[device]]\nname = "a"\nclients = "1-x"\nmacs = 1\ndown = 1\nup = 1', 'clients = "1-x"'),
    ('[[device]]\nname = "a"\nclients = "1"\nmacs = 1\ndown = 1\nup = 1', "is for client 0"),
    ("[[device", r"Expected '\]\]' at the end of an array"),
])  # fmt: skip
def test_a_wrong_file_is_one_line(text, why, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(RunError, match=why) as error:
        read(str(path), 3, 0)
    assert str(error.value).startswith(f'devices = "{path}": ') and "\n" not in str(error.value)


def test_named_devices_say_how_many_clients_they_have():
    with pytest.raises(RunError, match=r"is for client 4; it has those of 4 clients: set num-cl"):
        read("desktops", 6, 0)
    assert len(read("desktops", 4, 0).macs) == 4


@pytest.mark.parametrize("name", ["phones", "devices.toml"])
def test_a_wrong_name_says_what_there_is(name):
    with pytest.raises(RunError, match=rf'^devices = "{name}": must be lognormal, desktops, or'):
        read(name, 3, 0)
