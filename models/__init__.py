"""Models of your own, one file for each: docs/models.md."""
