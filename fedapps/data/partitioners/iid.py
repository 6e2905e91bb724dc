"""Equal shares at random."""

import numpy as np

from fedapps.core.settings import Settings
from fedapps.data.partitioners.dealing import cut_shuffled, even_edges


def owners(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Shuffle all samples and cut them into equal shares."""
    return cut_shuffled(even_edges(len(labels), settings.num_clients), settings)
