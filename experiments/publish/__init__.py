"""RESULTS.md and the page of results."""
