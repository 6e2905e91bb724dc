"""The papers' tables and figures as run-configs, and the program that runs them."""

from pathlib import Path

HERE = Path(__file__).parent  # of tables/, configs/ and results/
