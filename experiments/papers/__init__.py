"""What the papers' tables are: their rows, claims and readings, read from TOML files."""
