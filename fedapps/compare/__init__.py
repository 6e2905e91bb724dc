"""Runs side by side: read, grouped over seeds, as tables and curves; grids of runs."""
