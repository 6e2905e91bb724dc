"""Trains and scores clients of the same model together: one set of kernels for all of them."""
