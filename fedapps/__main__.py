"""Make `python -m fedapps` the same as the command `fedapps`."""

import sys

from fedapps.cli import main

if __name__ == "__main__":
    sys.exit(main())
