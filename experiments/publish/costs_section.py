"""FedSeq's costs on the pages of results: a section that needs no run."""

from experiments.figures.costs import HEADS, PAPER, costs, lines, with_first_list
from experiments.publish import charts
from experiments.publish.sections import Section

ABOUT = (
    "FedSeq, Tables 5 and 6 and Fig. 8. A cost is the number of parameters that a round trains, "
    "times the batches of a client, summed over clients and rounds. The published costs follow "
    "exactly from this rule with the model for images of 1x28x28, 50 batches of a client in a "
    "round (500 samples in batches of 10, one epoch), and all 100 clients in each of 300 rounds. "
    "The paper calls the cost FLOPs, but a parameter counts once per batch, however many samples "
    "and pixels it is multiplied with. In the paper's experiments only 10 clients train in a "
    "round, so with one local epoch they cost a tenth. The paper gives no cost for unfreezing at "
    "rounds 0, 50 and 100, and of the layers' parameters we know only the two published sums."
)
CAPTION = (
    "Cost of each round for one client, in millions of parameters x batches (Fig. 8; FedSeq "
    "unfreezes at rounds 0, 100 and 200)"
)


def section() -> Section:
    """Return the section: the table, and a chart of the cost per round."""
    found = costs(PAPER)
    curves = {name: cost.corners() for name, cost in with_first_list(found).items()}
    return Section(
        name="fedseq-costs",
        title="FedSeq: parameters and costs",
        about=ABOUT,
        command="python -m experiments costs --plot costs.png",
        state="These figures are computed and need no run",
        heads=[*HEADS],
        rows=[*lines(PAPER, found)],
        figures=[charts.over_x(CAPTION, "round", "million", curves)],
    )
