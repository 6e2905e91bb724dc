"""Print how far each method is from its twin: the largest difference after three rounds.

python -m tests.twins               # all methods
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
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
    print("| method | setting | server's model | clients' states | scores |")
    print("|---|---|---|---|---|")
    for method in methods or twins():
        for setting in SETTINGS:
            with TemporaryDirectory() as folder:
                found = differences(method, setting, Path(folder)).values()
            far = " | ".join(f"{value:.1e}" if value else "0" for value in found)
            print(f"| `{method}` | {setting} | {far} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
