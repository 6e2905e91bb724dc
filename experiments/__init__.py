"""The papers' tables and figures as run-configs, and the program that runs them."""
