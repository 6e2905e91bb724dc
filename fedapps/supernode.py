"""A SuperNode that ends when it has lost its SuperLink for good, so that it can be started again.

    python -m fedapps.supernode ...   # the options of flower-supernode

At an answer that Flower 1.41 does not try again at, as an expired certificate or an error of the
server, `flower-supernode` leaves its loop and stays as a process that does nothing, because the
thread that serves its own port is still there. A supervisor sees no reason to start it again.
"""

from flwr.supercore.exit import ExitCode, flwr_exit
from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run a SuperNode; never returns."""
    flower_supernode()
    flwr_exit(ExitCode.SUPERNODE_CONNECTION_ERROR, "Lost the SuperLink.")


if __name__ == "__main__":
    main()
