"""Running rows of tables, each once, and keeping their results."""
