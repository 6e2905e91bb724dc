"""RESULTS.md, the pages in docs/results, and results.html."""
