"""The server side of every method, one module per method."""
