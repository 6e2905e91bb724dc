"""The run directory: tables, summary, plots, page and loggers."""
