"""Compare runs: read and group them over seeds, make tables and curves; run grids of runs."""
