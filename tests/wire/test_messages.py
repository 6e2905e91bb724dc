"""Messages: what is packed is what is read, and one broken update costs that client only."""

import io
import struct
import tracemalloc
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.core.errors import one_line
from fedapps.core.flower import ErrorCode
from fedapps.method.update import ClientUpdate, Failure, replace
from fedapps.models.layers import Layout
from fedapps.training.channel import Channel
from fedapps.training.plan import Plan, Stage
from fedapps.wire import replies
from fedapps.wire.arrays import pack_arrays, unpack_arrays
from fedapps.wire.checks import NO_SIGN, BadMessage
from fedapps.wire.exchange import Exchange
from fedapps.wire.hello import pack_greeting, unpack_hello
from fedapps.wire.questions import (
    QuestionHeader,
    pack_answer,
    pack_answers,
    pack_question,
    read_question,
    unpack_answers,
)
from fedapps.wire.replies import unpack_reply
from fedapps.wire.requests import Request, RoundInfo, is_concurrent, pack_requests, read_request
from tests.support.fake_grid import reply_to

SHAPES = {
    "a.w": (2, 3),
    "a.b": (2,),
    "b.w": (4, 1, 2, 2),
    "b.mean": (4,),  # as a BatchNorm's statistics: it stays
    "c.w": (3, 4),
    "c.scale": (),
}
LAYOUT = Layout(
    names=("a", "b", "c"),
    head=("c",),
    keys={"a": ("a.w", "a.b"), "b": ("b.w", "b.mean"), "c": ("c.w", "c.scale")},
    shapes=SHAPES,
    parameters=frozenset(SHAPES) - {"b.mean"},
    parts={"b.mean": "norms"},
    stays=frozenset({"b.mean"}),
)
INFO = RoundInfo("/runs/x", "0123", presum=False)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
slices = st.lists(st.sampled_from(LAYOUT.names), unique=True).map(LAYOUT.slice)
stages = st.builds(
    Stage, layers=slices, epochs=st.integers(0, 100), lr=st.floats(1e-8, 10),
    momentum=st.floats(0, 0.99), weight_decay=st.floats(0, 1), prox_mu=st.floats(0, 1),
)  # fmt: skip
plans = st.builds(
    Plan,
    round=st.integers(1, 10**6),
    download=slices,
    stages=st.lists(stages, max_size=3).map(tuple),
    upload=slices,
)


def draw_arrays(draw, keys):
    """Random arrays of the layout's shapes; denormals, negative zeros and all."""
    return {
        key: np.array(
            draw(st.lists(finite, min_size=(size := int(np.prod(SHAPES[key]))), max_size=size)),
            np.float32,
        ).reshape(SHAPES[key])
        for key in keys
    }


@st.composite
def downloads(draw):
    """Requests of some clients: server arrays, which are one object for all, and own ones."""
    server = draw_arrays(draw, LAYOUT.shared(LAYOUT.names))
    made = []
    for client in draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True)):
        plan = draw(plans)
        arrays = {key: server[key] for key in LAYOUT.shared(plan.download)}
        for key in draw(st.sets(st.sampled_from(list(SHAPES)))) & arrays.keys():
            arrays[key] = arrays[key] + np.float32(client % 7)
        made.append(Request(client, plan, arrays))
    return made


@st.composite
def results(draw, requests):
    """What the clients of `requests` would answer: some updates, some failures."""
    updates, failures = [], []
    for request in requests:
        if draw(st.booleans()):
            failures.append(Failure(request.client, draw(st.text(max_size=30))))
            continue
        arrays = draw_arrays(draw, LAYOUT.shared(request.plan.upload))
        metrics = {"loss": draw(finite), "macs": draw(st.integers(0, 2**62)), "hits": [1, 2]}
        n = draw(st.integers(1, 10**9))
        updates.append(ClientUpdate(request.client, arrays, n, metrics, float(n)))
    return updates, failures


def wire(message):
    """The message as it is after Flower serialised it, sent its objects, and read them again."""
    contents = {key: obj.deflate() for key, obj in get_all_nested_objects(message).items()}
    read = inflate_object_from_contents(message.object_id, contents)
    read.metadata.__dict__["_message_id"] = message.object_id
    return read


def send(requests, info=INFO):
    return wire(pack_requests(requests, info, node=5, kind="train", group="3"))


def same_bits(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes()
        for k in a
    )


# There and back -----------------------------------------------------------------------------------


@settings(max_examples=30)
@given(downloads(), st.text(max_size=20), st.booleans())
def test_requests_arrive_as_they_were(requests, text, presum):
    info = RoundInfo(f"/runs/{text}", text, presum)
    message = send(requests, info)
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (5, "train")
    assert message.metadata.group_id == "3"
    asked = read_request(message)
    header, read = asked.header, asked.requests(LAYOUT)
    assert (header.run_dir, header.fingerprint, header.presum) == (info.run_dir, text, presum)
    assert [(r.client, r.plan) for r in read] == [(r.client, r.plan) for r in requests]
    for before, after in zip(requests, read, strict=True):
        assert same_bits(after.arrays, before.arrays)


@settings(max_examples=30)
@given(downloads())
def test_what_all_clients_get_travels_once(requests):
    content = send(requests).content
    everywhere = set.intersection(*(set(request.arrays) for request in requests))
    common = {k for k in everywhere if len({id(r.arrays[k]) for r in requests}) == 1}
    assert set(content["arrays"]) == common
    records = {"arrays", "config"}
    for request in requests:
        own = set(request.arrays) - common
        assert set(content.array_records.get(f"arrays-{request.client}", {})) == own
        records |= {f"arrays-{request.client}"} if own else set()
    assert set(content) == records


def test_a_model_that_many_devices_get_is_in_memory_once_and_only_until_it_is_sent():
    model = {"a.w": np.ones(250_000, np.float32)}  # 1 MB
    plan = Plan(round=3, download=("a",), stages=(), upload=())
    exchange = Exchange([(node, [Request(node, plan, dict(model))]) for node in range(30)])
    tracemalloc.start()
    messages = exchange.messages(INFO, "train", "3")
    held = tracemalloc.get_traced_memory()[0]
    assert all(np.array_equal(m.content["arrays"]["a.w"].numpy(), model["a.w"]) for m in messages)
    del messages
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 2e6 and left < 5e5


def test_models_of_single_clients_are_kept_only_until_they_are_packed():
    plan = Plan(round=3, download=("a",), stages=(), upload=())
    tracemalloc.start()
    models = [{"a.w": np.full(250_000, n, np.float32)} for n in range(5)]  # 1 MB each
    exchange = Exchange([(n, [Request(n, plan, model)]) for n, model in enumerate(models)])
    del models
    assert tracemalloc.get_traced_memory()[0] > 5e6
    del exchange.messages(INFO, "evaluate", "3")[:]
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert left < 5e5 and exchange.nbytes == 5e6 and [*exchange.requests] == [0, 1, 2, 3, 4]


@settings(max_examples=30)
@given(st.data())
def test_replies_arrive_as_they_were(data):
    requests = data.draw(downloads())
    updates, failures = data.draw(results(requests))
    reply = wire(reply_to(send(requests), updates, failures))
    read, failed = unpack_reply(requests, reply, LAYOUT)
    assert [f.client for f in failed] == [f.client for f in failures]
    assert len(read) == len(updates)
    for before, after in zip(updates, read, strict=True):
        assert same_bits(after.arrays, before.arrays)
        told = (after.client, after.num_examples, after.weight, after.metrics)
        assert told == (before.client, before.num_examples, before.weight, before.metrics)


def test_a_failure_keeps_its_last_line_only():
    requests = make_requests([1, 2])
    failures = [Failure(1, "Traceback:\n  in f\nValueError: too short\n\n"), Failure(2, "")]
    _, failed = unpack_reply(requests, reply_to(send(requests), [], failures), LAYOUT)
    assert failed == [Failure(1, "ValueError: too short"), Failure(2, "no reason given")]


def test_a_client_alone_gets_flowers_ordinary_train_message():
    requests = make_requests([7])
    message = send(requests)
    assert set(message.content) == {"arrays", "config"}
    reply = reply_to(message, [make_update(7)], [])
    assert set(reply.content) == {"arrays", "metrics", "failures"}
    assert reply.content["metrics"]["num-examples"] == 17
    assert set(reply.content["arrays"]) == set(LAYOUT.shared(("a", "c")))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bytes_of_a_download_are_those_that_travel(dtype):
    """A method's state is float64 as NumPy makes it, and travels as float32."""
    (made,) = make_requests([7])
    arrays = {key: array.astype(dtype) for key, array in made.arrays.items()}
    request = Request(made.client, made.plan, arrays)
    (read,) = read_request(wire(send([request]))).requests(LAYOUT)
    travelled = sum(array.nbytes for array in read.arrays.values())
    assert request.nbytes == travelled == 4 * (2 * 3 + 2 + 3 * 4 + 1)


# Checks on the server -----------------------------------------------------------------------------


def make_requests(clients):
    plan = Plan(round=3, download=("a", "c"), stages=(), upload=("a", "c"))
    server = make_arrays(0)
    return [Request(client, plan, server) for client in clients]


def make_arrays(seed):
    draws = np.random.default_rng(seed)
    keys = LAYOUT.shared(("a", "c"))
    return {key: draws.normal(size=SHAPES[key]).astype(np.float32) for key in keys}


def make_update(client):
    return ClientUpdate(client, make_arrays(client), 10 + client, {"loss": 0.5}, 10.0 + client)


def test_an_array_is_packed_as_numpy_saves_it_whoever_counted_its_sides():
    values, file = np.arange(143, dtype=np.float32).reshape(11, 13), io.BytesIO()
    np.save(file, values)
    counted = (np.int64(11), np.int64(13))
    received = ArrayRecord({"a.w": raw(npy(values), values.shape)})
    assert np.array_equal(unpack_arrays(received, {"a.w": counted})["a.w"], values)
    assert pack_arrays({"a.w": values})["a.w"].data == file.getvalue()


def npy(array, version=(1, 0)):
    """Bytes of an array in npy format, by hand: magic, version, length of the header, header."""
    header = header_of(array.shape, array.dtype.str, np.isfortran(array))
    return npy_of(header, array.tobytes("A"), version)


def npy_of(header, values, version=(1, 0)):
    text = header.encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + values


def raw(data, shape=(2, 3), dtype="float32", stype="numpy.ndarray"):
    """An Array of Flower's with these bytes, whatever they are."""
    return Array(dtype, shape, stype, data)


def header_of(shape, descr="<f4", fortran=False):
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2), (2, 0)])
def test_arrays_are_packed_as_flower_packs_them(shape):
    values = np.random.default_rng(0).normal(size=shape)
    ours, flowers = pack_arrays({"a": values})["a"], Array(np.asarray(values, "<f4"))
    for field in ("data", "dtype", "shape", "stype"):
        assert getattr(ours, field) == getattr(flowers, field)


def with_value(value):
    array = make_arrays(1)["a.w"]
    array[1, 2] = value
    return Array(array)


GOOD = make_arrays(1)["a.w"]
ZEROS = bytes(24)
HEADER = "a.w does not begin with NumPy's header of float32(2, 3)"
WANTED = " bytes of values for a.w: expected 24"
BAD_ARRAYS = {
    "NaN": (with_value(np.nan), "values in a.w are not finite"),
    "inf": (with_value(-np.inf), "values in a.w are not finite"),
    "shape": (Array(GOOD.T.copy()), "a.w is called float32(3, 2): expected float32(2, 3)"),
    "flat": (Array(GOOD.reshape(6)), "a.w is called float32(6,): expected float32(2, 3)"),
    "float64": (Array(GOOD.astype(np.float64)), "a.w is called float64(2, 3): expected float32("),
    "int32": (Array(GOOD.astype(np.int32)), "a.w is called int32(2, 3): expected float32(2, 3)"),
    "big-endian": (Array(GOOD.astype(">f4")), "a.w is called >f4(2, 3): expected float32(2, 3)"),
    "fortran": (Array(np.asfortranarray(GOOD)), HEADER),
    "truncated": (raw(npy(GOOD)[:-1]), f"23{WANTED}"),
    "only values": (raw(GOOD.tobytes()), HEADER),
    "too long": (raw(npy(GOOD) + b"x"), f"25{WANTED}"),
    "10 GB": (raw(npy_of(header_of((2_500_000_000,)), ZEROS)), HEADER),
    "no bytes": (raw(b""), HEADER),
    "1 MB": (raw(npy(GOOD) + bytes(10**6)), f"1000024{WANTED}"),
    "pickle": (raw(npy_of(header_of((3,), "|O"), ZEROS)), HEADER),
    "npy 2.0": (raw(npy(GOOD, (2, 0))), HEADER),
    "npy 9.9": (raw(npy(GOOD, (9, 9))), HEADER),
    "no npy": (raw(b"PK\x03\x04" + bytes(148)), HEADER),
    "header is no dict": (raw(npy_of("[1, 2]", ZEROS)), HEADER),
    "header is no Python": (raw(npy_of("{'descr': '''", ZEROS)), HEADER),
    "header is deep": (raw(npy_of("(" * 90, ZEROS)), HEADER),
    "header has no end": (raw(b"\x93NUMPY\x01\x00\xff\xff" + bytes(142)), HEADER),
    "negative shape": (raw(npy_of(header_of((-2, -3)), ZEROS)), HEADER),
    "other pickle": (raw(npy(GOOD), stype="torch.pickle"), "a.w comes as torch.pickle: expected n"),
}


PRESUM = RoundInfo("/runs/x", "0123", presum=True)


def unpack_with(change, clients=(1, 2, 3), info=INFO):
    """Let `change` break the reply of three clients; return (clients read, failures)."""
    requests = make_requests(clients)
    reply = reply_to(send(requests, info), [make_update(client) for client in clients], [])
    change(reply.content)
    updates, failures = unpack_reply(requests, reply, LAYOUT, info.presum)
    for update in updates:  # the others go through untouched
        assert same_bits(update.arrays, make_arrays(update.client))
        assert update.num_examples == update.weight == 10 + update.client
    assert all("\n" not in f.cause and f.cause for f in failures)
    return [update.client for update in updates], failures


def drops_client_2(change, cause, **options):
    clients, failures = unpack_with(change, **options)
    assert (clients, [failure.client for failure in failures]) == ([1, 3], [2])
    assert failures[0].cause.startswith(cause)


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_broken_array_drops_exactly_its_client(name):
    array, cause = BAD_ARRAYS[name]
    drops_client_2(lambda content: content["arrays-2"].update({"a.w": array}), cause)


def test_a_fault_in_reading_costs_the_client_that_sent_it(monkeypatch):
    read = replies._unpack_update

    def fail(request, *arguments):
        if request.client == 2:
            raise IndexError("nobody thought of this")
        return read(request, *arguments)

    monkeypatch.setattr(replies, "_unpack_update", fail)
    drops_client_2(lambda content: None, "its reply cannot be read (IndexError)")


@given(st.integers(0, 151), st.integers(0, 255))
def test_no_changed_byte_of_an_array_can_do_more_than_drop_its_client(place, byte):
    data = bytearray(npy(GOOD))
    assert len(data) == 152  # 128 of magic and header, 24 of values
    data[place] = byte
    requests = make_requests([1, 2, 3])
    reply = reply_to(send(requests), [make_update(client) for client in (1, 2, 3)], [])
    reply.content["arrays-2"]["a.w"] = raw(bytes(data))
    updates, failures = unpack_reply(requests, reply, LAYOUT)
    assert {u.client for u in updates} | {f.client for f in failures} == {1, 2, 3}
    assert {f.client for f in failures} <= {2}
    for update in (u for u in updates if u.client == 2):  # then it was read as the bytes say
        values = np.frombuffer(bytes(data[128:]), np.float32).reshape(2, 3)
        assert update.arrays["a.w"].tobytes() == values.tobytes()
        assert np.isfinite(values).all()


def arrays_2(content, added=(), removed=()):
    for key in removed:
        del content["arrays-2"][key]
    for key, name in added:
        content["arrays-2"][key] = Array(np.zeros(SHAPES[name], np.float32))


MISSING, NONE = "arrays missing or not asked for: ", "the reply has no result of this client"


@pytest.mark.parametrize(("change", "cause"), [
    (partial(arrays_2, removed=["a.w"]), f"{MISSING}a.w"),
    (partial(arrays_2, removed=["c.scale"]), f"{MISSING}c.scale"),
    (partial(arrays_2, removed=["a.w"], added=[("z.w", "a.w")]), "unknown array z.w"),
    (partial(arrays_2, added=[("b.w", "b.w")]), f"{MISSING}b.w"),
    (partial(arrays_2, added=[("b.mean", "b.mean")]), f"{MISSING}b.mean"),
    (lambda content: content["arrays-2"].clear(), f"{MISSING}a.b, a.w, c.scale"),
    (lambda content: content.pop("arrays-2"), NONE),
    (lambda content: content.pop("metrics-2"), NONE),
    (lambda content: content.update({"arrays-2": ConfigRecord({"a": 1})}), NONE),
])  # fmt: skip
def test_wrong_names_drop_exactly_their_client(change, cause):
    assert unpack_with(change) == ([1, 3], [Failure(2, cause)])


WRONG = {  # of weights the last would make the mean infinite
    "num-examples": [0, -4, 12.0, [12], None],
    "weight": [float("nan"), float("inf"), -1e-9, 1.7e308, [12.0]],
}


@pytest.mark.parametrize(("key", "value"), [(key, v) for key in WRONG for v in WRONG[key]])
def test_a_wrong_count_or_weight_drops_exactly_its_client(key, value):
    def change(content):
        if value is None:
            del content["metrics-2"][key]
        else:
            content["metrics-2"][key] = value

    shown = 0 if value is None else value
    drops_client_2(change, f"{key} = {shown}: must be ", info=PRESUM)


def test_a_client_with_more_samples_than_before_says_what_the_limit_is():
    """As a device does whose data has grown during the run."""
    requests = [replace(request, samples=300) for request in make_requests([1, 2, 3])]
    reply = reply_to(send(requests), [make_update(client) for client in (1, 2, 3)], [])
    reply.content["metrics-2"]["num-examples"] = 301
    (failure,) = unpack_reply(requests, reply, LAYOUT, False)[1]
    why = "must be from 1 to 300, the samples that it had when it was last asked"
    assert failure == Failure(2, f"num-examples = 301: {why}")


def test_a_client_that_weighs_nothing_sends_no_array():
    """With presum one client of a SuperNode carries the mean; the others must not count twice."""

    weightless = {"weight": 0.0}
    drops_client_2(lambda c: c["metrics-2"].update(weightless), MISSING, info=PRESUM)
    requests = make_requests([1, 2])
    silent = ClientUpdate(2, {}, 12, {}, 0.0)
    reply = reply_to(send(requests, PRESUM), [make_update(1), silent], [])
    assert [u.weight for u in unpack_reply(requests, reply, LAYOUT, True)[0]] == [11.0, 0.0]


def test_two_means_of_a_supernode_do_not_weigh_more_than_its_samples_together():
    requests = [replace(request, samples=20) for request in make_requests([1, 2, 3])]
    for weight, read in ((49.0, [1, 2]), (49.5, [1, 3])):  # of 60, client 1 took 11
        weights = {1: 11.0, 2: weight, 3: 13.0}
        updates = [replace(make_update(c), weight=w) for c, w in weights.items()]
        reply = reply_to(send(requests, PRESUM), updates, [])
        found, failures = unpack_reply(requests, reply, LAYOUT, True)
        assert [update.client for update in found] == read
        assert len(failures) == 1 and failures[0].cause.startswith("weight = ")


def test_without_presum_a_client_weighs_its_samples_whatever_it_says():
    """Flower's ordinary train reply has `num-examples` alone; no client may weigh nothing."""
    reply = reply_to(send(make_requests([1])), [make_update(1)], [])
    assert "weight" not in reply.content["metrics"]
    for weight in (None, 0.0, 1e30):
        if weight is not None:
            reply.content["metrics"]["weight"] = weight
        updates, failures = unpack_reply(make_requests([1]), reply, LAYOUT)
        assert not failures and updates[0].weight == 11.0


@pytest.mark.parametrize(("reason", "cause"), [
    ("Traceback\n  File x\nMemoryError: out of memory", "MemoryError: out of memory"),
    ("  \n ", "no reason given"),
    (None, "no reason given"),
    ("x" * 5000, "x" * 300),
])  # fmt: skip
def test_an_error_reply_fails_all_clients_of_the_message(reason, cause):
    requests = make_requests([1, 2])
    reply = Message(Error(1, reason), reply_to=send(requests))
    assert unpack_reply(requests, reply, LAYOUT) == ([], [Failure(1, cause), Failure(2, cause)])


def test_a_supernode_that_is_gone_is_said_to_give_no_sign_of_life():
    """Flower speaks of heartbeats and intervals."""
    requests = make_requests([1])
    reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "Error: Node"), reply_to=send(requests))
    assert unpack_reply(requests, reply, LAYOUT) == ([], [Failure(1, NO_SIGN)])
    assert unpack_hello(reply).problem == NO_SIGN and unpack_answers([1], reply) == (
        {}, [Failure(1, NO_SIGN)]
    )  # fmt: skip


BROKEN = (  # clients, causes
    ([1, 2], ["x"]), ([1], []), (1, ["x"]), ([1], "x"), (b"\x01", ["x"]), (["1"], ["x"]),
    ([1.0], ["x"]), ([1], [5]), ([1], None), (None, ["x"]), ([99], ["x"]), ([1, 99], ["x", "y"]),
)  # fmt: skip


@pytest.mark.parametrize(("named", "causes"), BROKEN)
def test_a_broken_list_of_failures_fails_all_clients_of_the_message(named, causes):
    told = {"clients": named, "causes": causes}
    record = ConfigRecord({key: value for key, value in told.items() if value is not None})
    clients, failures = unpack_with(lambda c: c.update({"failures": record}), clients=(1, 2))
    assert (clients, [failure.client for failure in failures]) == ([], [1, 2])
    for failure in failures:
        assert failure.cause.startswith("the reply's list of failures is broken: ")


def test_a_reply_without_list_of_failures_is_one_without_failures():
    assert unpack_with(lambda content: content.pop("failures")) == ([1, 2, 3], [])


def test_a_client_named_as_failed_does_not_count_even_with_a_result():
    record = ConfigRecord({"clients": [2], "causes": ["OSError: disk full"]})
    found = unpack_with(lambda content: content.update({"failures": record}))
    assert found == ([1, 3], [Failure(2, "OSError: disk full")])


# Checks on the client -----------------------------------------------------------------------------


def test_a_request_with_a_broken_array_is_refused_as_a_whole():
    message = send(make_requests([1, 2]))
    message.content["arrays"]["a.w"] = with_value(np.nan)
    with pytest.raises(BadMessage, match=r"^values in a\.w are not finite$"):
        read_request(message).requests(LAYOUT)


def test_a_request_for_another_model_is_refused():
    message = send(make_requests([1]))
    other = Layout(("a",), ("a",), {"a": ("a.w",)}, {"a.w": (2, 3)}, frozenset(), {}, frozenset())
    with pytest.raises(BadMessage, match=r"^unknown array "):
        read_request(message).requests(other)


def test_arrays_in_any_layout_and_float_type_arrive_as_float32():
    arrays = {
        "a.w": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
        "a.b": np.ones(2),
        "c.w": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
        "c.scale": np.float32(2.5),
    }
    plan = Plan(round=1, download=("a", "c"), stages=(), upload=())
    (read,) = read_request(send([Request(1, plan, arrays)])).requests(LAYOUT)
    for key, array in read.arrays.items():
        assert array.dtype == np.float32
        assert np.array_equal(array, arrays[key])


@given(st.text(max_size=400))
def test_a_cause_is_one_short_line(text):
    line = one_line(text)
    assert 0 < len(line) <= 300
    assert len(line.splitlines()) == 1


# Questions ----------------------------------------------------------------------------------------


def ask(clients=(3, 8)):
    return wire(pack_question(clients, 5, "layer-seconds", "/runs/x"))


def answered(message, answers, failures=()):
    return pack_answers(message, {c: pack_answer(v) for c, v in answers.items()}, failures)


numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4)
values_of_clients = st.dictionaries(st.integers(0, 10**6), numbers, min_size=1, max_size=4)


@given(values_of_clients, st.text(max_size=20), st.text(max_size=20))
def test_questions_and_answers_arrive_as_they_were(answers, question, run_dir):
    message = wire(pack_question([*answers], 5, question, run_dir))
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (5, "query.ask")
    assert read_question(message) == QuestionHeader(question, [*answers], run_dir)
    assert unpack_answers([*answers], wire(answered(message, answers))) == (answers, [])


@pytest.mark.parametrize("values", [[1.0, np.nan], [np.inf], [-np.inf, 2.0], 4.5, 4, None])
def test_an_answer_that_is_no_list_of_finite_numbers_fails_its_client_only(values):
    reply = answered(ask(), {3: [1.0], 8: [2.0]})
    if values is None:
        del reply.content["answer-8"]
    else:
        reply.content["answer-8"]["values"] = values
    cause = "its answer is not a list of finite numbers"
    assert unpack_answers([3, 8], reply) == ({3: [1.0]}, [Failure(8, cause)])


def test_an_answer_of_whole_numbers_is_one_of_floats():
    found, failures = unpack_answers([3], wire(answered(ask([3]), {3: [1, 2]})))
    assert found == {3: [1.0, 2.0]} and not failures
    assert all(isinstance(value, float) for value in found[3])


def test_what_is_said_of_clients_that_were_not_asked_counts_for_nothing():
    reply = answered(ask([3]), {3: [1.0], 9: [2.0]})
    assert unpack_answers([3], reply) == ({3: [1.0]}, [])


def test_a_client_that_could_not_answer_says_why_in_one_line():
    failures = [Failure(8, "ValueError: no\x1b[2J luck")]
    reply = wire(answered(ask(), {3: [1.0]}, failures))
    why = [Failure(8, "ValueError: no?[2J luck")]
    assert unpack_answers([3, 8], reply) == ({3: [1.0]}, why)


@pytest.mark.parametrize("change", ["a client that was not asked", "no list"])
def test_failures_that_cannot_be_fail_all_that_were_asked(change):
    reply = answered(ask(), {3: [1.0]}, [Failure(9 if "asked" in change else 8, "x")])
    if change == "no list":
        reply.content["failures"]["causes"] = "x"
    found, failures = unpack_answers([3, 8], reply)
    assert found == {} and [failure.client for failure in failures] == [3, 8]
    assert all("list of failures is broken" in failure.cause for failure in failures)


def test_an_error_instead_of_answers_fails_all_that_were_asked():
    reply = Message(Error(1, "Traceback\nOSError: gone"), reply_to=ask())
    cause = "OSError: gone"
    assert unpack_answers([3, 8], reply) == ({}, [Failure(3, cause), Failure(8, cause)])


# Messages that need each other --------------------------------------------------------------------


def test_a_message_is_concurrent_exactly_if_a_plan_of_it_has_a_channel():
    (alone,) = make_requests([1])
    channel = Channel(address="127.0.0.1:1", token="t")
    joined = Request(2, replace(alone.plan, channel=channel), alone.arrays)
    assert not is_concurrent(send([alone]))
    for requests in ([joined], [alone, joined]):
        assert is_concurrent(send(requests)) and read_request(send(requests)).header.concurrent
    for other in (ask(), pack_greeting(5), Message(RecordDict(), 5, "train")):
        assert not is_concurrent(other)
