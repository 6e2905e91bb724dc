"""The one error that ends a run: a single line that says what is wrong and what to do."""


class RunError(Exception):
    """A run cannot start or go on; its text is one line: what, which value, what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
