"""The client side of every method, one module per method."""
