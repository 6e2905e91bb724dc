"""The one error that ends a run: a single line that says what is wrong and what to do."""


class RunError(Exception):
    """A run cannot start or go on; its text is one line: what, which value, what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def one_line(text: str) -> str:
    """Shorten an error text to its last telling line, without characters that steer a terminal."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no reason given"
    return "".join(letter if letter.isprintable() else "?" for letter in last)
