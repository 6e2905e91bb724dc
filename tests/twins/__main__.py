"""Print how far each method is from its twin after three rounds, in both settings.

A figure is the largest difference of the server's model, of what clients keep, and of their
accuracies and losses. docs/checks.md shows this table.

    python -m tests.twins               # all methods: about a minute of one core
    python -m tests.twins fedper apfl   # some of them
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.supercore.task_identity import TaskIdentity

from tests.twins.harness import SETTINGS, differences, twins


def main(methods):
    torch.set_num_threads(1)
    # Flower's messages can be made only where a task is known
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
    print(f"| method | {' | '.join(SETTINGS)} |\n|---|---|---|")
    for method in methods or twins():
        far = []
        for setting in SETTINGS:
            with TemporaryDirectory() as folder:
                far.append(max(differences(method, setting, Path(folder)).values()))
        print(f"| `{method}` | {' | '.join(f'{value:.0e}' for value in far)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
