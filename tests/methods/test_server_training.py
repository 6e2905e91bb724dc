"""The server's own training: on its share of the data, or on all of it."""

from functools import partial

import numpy as np
import pytest

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec, image_spec
from fedapps.models import MODELS
from fedapps.models.blocks import of_images
from fedapps.models.norms import batch_norms
from fedapps.training.draw import Draw
from fedapps.training.workspace import Workspace
from tests.support.references import BATCH, assert_close, grad, moved, reference, sgd


@pytest.mark.parametrize("part", ["full", "body"])
def test_the_server_trains_on_its_share(small, serial_run, flat_config, read_model, part):
    """`prox-mu` pulls clients to the model that they received, and the server nowhere."""
    options = f'strategy="fedavg" server-data=0.5 server-part="{part}" prox-mu=0.5'
    folder = serial_run(small, options)
    ref = reference(flat_config, small, options)
    x, y = ref.space.data.server_samples
    assert len(y) == round(0.5 * sum(len(ref.data(i)[1]) for i in (0, 1)))
    w = ref.start
    for round_ in (1, 2):
        pulled = partial(_pulled_to, w)
        w = ref.mean([sgd(w, ref.batches(i, round_), pulled) for i in (0, 1)])
        order = Draw(0, "train", round_, 0).order(0, len(y))
        steps = [(x[chosen].double(), y[chosen]) for chosen in order.split(BATCH)]
        w = sgd(w, steps, partial(_grad_of, part))
    assert_close(read_model(folder), w)


def test_the_servers_share_is_drawn_from_all_training_samples(tiny_npz, flat_config):
    options = 'strategy="fedavg" num-clients=3 partitioner="classes" classes-per-client="0/1/2"'
    space = Workspace(config.read(flat_config(tiny_npz, options, "server-data=0.4")))
    share = space.population.share
    every = np.concatenate([share(client).train for client in space.population.training])
    images, labels = space.data.server_samples
    assert len(labels) == round(0.4 * len(every))
    assert np.bincount(labels, minlength=3).min() > 0, "of each client, who has a class of its own"
    found = {image.numpy().tobytes() for image in images}
    assert len(found) == len(labels), "each sample once"
    assert found <= {image.numpy().tobytes() for image in space.dataset.tensors(every)[0]}


def _pulled_to(received, p, x, y):
    return moved(grad(p, x, y), moved(p, received, -1), 0.5)


def _grad_of(part, p, x, y):
    g = grad(p, x, y)
    return {k: v if part == "full" or k.startswith("body") else 0 * v for k, v in g.items()}


def test_the_loss_of_a_round_is_that_of_its_clients(serial_run, untimed_rounds):
    """In round 1 clients train alike, whatever the server does after them."""
    plain, shared = (
        untimed_rounds(serial_run(f'strategy="fedavg" {option} server-part="full"'))[0]
        for option in ("server-data=0.0", "server-data=0.5")
    )
    assert plain["train_loss"] == shared["train_loss"]
    assert int(plain["train_macs"]) < int(shared["train_macs"])


@pytest.mark.parametrize("part", ["full", "body", "head"])
def test_centralized_trains_a_part(serial_run, read_model, workspace_of, part):
    folder = serial_run(f'strategy="centralized" centralized.trainable="{part}"')
    initial = workspace_of(folder).initial
    for key, value in read_model(folder).items():
        in_head = key.startswith("fc2.")
        changed = part == "full" or in_head == (part == "head")
        assert np.array_equal(value, initial[key]) != changed


def test_server_data_leaves_what_clients_do_not_share(serial_run, read_model, workspace_of):
    folder = serial_run('strategy="fedbabu" server-data=0.5')
    initial = workspace_of(folder).initial
    for key, value in read_model(folder).items():
        assert np.array_equal(value, initial[key]) == key.startswith("fc2.")
    for method in ("fedper", "fedrep", "fedbn"):
        with pytest.raises(RunError, match=r"server-data: clients train their own .+, so the"):
            serial_run(f'strategy="{method}" server-data=0.5 model="lenet5"')
    why = r"server-data: clients of this strategy do not train the server's model"
    for method in ("local", "fedfomo", "centralized", "pfedsim", "lgfedavg", "fedpac", "feddbe"):
        with pytest.raises(RunError, match=why):
            serial_run(f'strategy="{method}" server-data=0.5')


def test_what_the_server_trained_leaves_only_its_model(serial_run, read_model, monkeypatch):
    """A BatchNorm without momentum averages over the batches it has counted: those of one round.

    Of a run that is resumed, or whose clients are scored in this process, it has counted no others.
    """

    def build(shape, classes):
        model = MODELS["lenet5"].build(image_spec(shape), Spec((classes,)))
        for norm in batch_norms(model):
            norm.momentum = None
        return model

    monkeypatch.setitem(MODELS, "counting", of_images(build))
    base = 'strategy="centralized" model="counting" evaluate-every=0 checkpoint-every=1'
    whole = serial_run(base, "num-rounds=2")
    folder = serial_run(base, "num-rounds=1")
    serial_run(base, f'num-rounds=2 resume="{folder}"')
    for key, value in read_model(whole).items():
        np.testing.assert_array_equal(read_model(folder)[key], value, key)
