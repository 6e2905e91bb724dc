"""Trains and scores clients of the same model together: one set of kernels for all of them.

`group.Group` is what the rest of the project uses. It takes a `run.Lesson` for each client, and
does what `Trainer.train` does for one, up to rounding.
"""
