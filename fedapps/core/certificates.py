"""Until when certificates are valid, and which ones the processes around this one were given."""

from pathlib import Path

import psutil


def end_of(path: Path | None) -> float:
    """Return when the first of a PEM file's certificates ends, in seconds since 1970, or 0."""
    if path is None:
        return 0.0
    from cryptography import x509  # most users of this module have no certificate

    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return 0.0
    return min(one.not_valid_after_utc.timestamp() for one in found)


def given_above(option: str, beside: str = "") -> Path | None:
    """Return the file that the process which started this one was given with an option.

    The nearest process above this one counts whose command line has the options `option` and
    `beside`. Flower does not hand the names of these files down to an app.
    """
    try:
        above = psutil.Process().parents()
    except psutil.Error:
        return None
    for process in above:
        try:
            words = process.cmdline()
            if (found := value_of(words, option)) and (not beside or value_of(words, beside)):
                return Path(process.cwd()) / found
        except psutil.Error:  # it has ended, or is another user's
            continue
    return None


def value_of(words: list[str], option: str) -> str:
    """Return the value of an option of a command line; empty if the option is not there."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word == option:
            return after
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return ""
