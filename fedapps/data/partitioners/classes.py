"""Each client has given classes."""

import numpy as np

from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number, span
from fedapps.data.partitioners.dealing import allot, deal


def owners(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Give each client its `classes-per-client`; clients with the same class share it equally."""
    sizes = np.bincount(labels)
    held = np.zeros((settings.num_clients, len(sizes)))
    for client, classes in enumerate(_class_sets(settings, len(sizes))):
        held[client, classes] = 1
    counts = allot(held / np.maximum(held.sum(axis=0), 1), sizes)
    return deal(labels, counts, partition_generator(settings.seed, "deal"))


def _class_sets(settings: Settings, classes: int) -> list[list[int]]:
    """Parse `classes-per-client`, such as `0-2/2-4` or `0,1/2,3`: one set of classes per client."""
    where = f'classes-per-client = "{settings.classes_per_client}"'
    texts = settings.classes_per_client.split("/")
    try:
        sets = [[span(word) for word in text.split(",")] for text in texts]
    except ValueError as error:
        raise RunError(
            f"{where}: must be a set per client, such as 0-2/2-4/4-6/7-9 or 0,1/2,3"
        ) from error
    if len(sets) != settings.num_clients:
        raise RunError(
            f"{where}: {number(len(sets), 'set')} for num-clients = {settings.num_clients};"
            " must be one per client"
        )
    highest = max(one[-1] for spans in sets for one in spans)
    if highest >= classes:
        raise RunError(f"{where}: class {highest} is unknown; classes are 0..{classes - 1}")
    return [sorted({label for one in spans for label in one}) for spans in sets]
