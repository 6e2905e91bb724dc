"""The rounds of a run: checks of replies, failures, privacy, client stores and checkpoints."""
