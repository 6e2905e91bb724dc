"""The papers' tables and figures as run-configs, and the runner that makes them."""
