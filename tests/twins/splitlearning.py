"""Split learning: Gupta, Raskar 2018; clients train in turn and hand their layers on."""

from tests.twins.common import Sgd, gradients_of, rounds, scored, state, usable
from tests.twins.harness import Outcome

SETTINGS = {"momentum": "momentum=0.5"}  # with 0.9, three clients' steps in a row amplify rounding


def splitlearning(world):
    """One client part goes from client to client; the server's part is one for all."""
    cut = world["splitlearning.cut"] or min(4, len(world.names) // 2)
    model = world.model()
    for t, chosen, lr in rounds(world):
        above = Sgd(world, model[cut:].parameters(), lr)
        for i in chosen:
            below = Sgd(world, model[:cut].parameters(), lr)
            model.train()
            for batch in usable(model, world.training(t, i)):
                found = gradients_of(model, *batch)
                below.step(found[: len(below.parameters)])
                above.step(found[len(below.parameters) :])
    whole = state(model.eval())
    return Outcome(whole, {}, scored(world, lambda i: world.model(whole)))
