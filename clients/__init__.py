"""Client side of every method, one module each."""
