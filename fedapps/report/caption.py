"""The caption of a run's plots: method, data, seed, rounds, scored clients and samples."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedapps.core.changes import data_name
from fedapps.core.schema import Scalar
from fedapps.core.words import number
from fedapps.tasks import CLASSIFICATION, Metric


@dataclass(frozen=True)
class Caption:
    """The title of all plots of a run, and the clients and samples that were scored."""

    title: str = ""
    clients: int = 0  # clients that the last evaluation scored
    samples: str = "test"  # subset that they were scored on: test or validation
    metric: Metric = CLASSIFICATION.lead  # by which they were scored

    @classmethod
    def of(
        cls, flat: Mapping[str, Scalar], rounds: int, clients: int, metric: Metric = metric
    ) -> "Caption":
        """Make the caption of a run with this run-config and `rounds` rounds so far."""
        wanted = int(flat["num-rounds"])
        done = f"{rounds} of {wanted} rounds" if rounds < wanted else number(rounds, "round")
        title = f"{flat['strategy']} on {data_name(flat['dataset'])}, seed {flat['seed']}, {done}"
        return cls(title, clients, str(flat["evaluate-on"]), metric)

    @property
    def scored(self) -> str:
        """Say what a mean is over, for example `20 clients, each on its test samples`."""
        return f"{number(self.clients, 'client')}, each on its {self.samples} samples"
