"""Every method beside an independent implementation in plain PyTorch (see `harness`)."""
