"""Write numbers, bytes and durations in a readable form."""

from rich.filesize import pick_unit_and_suffix

LINE_WIDTH = 100  # of tables and progress lines on the screen
PREFIXES = ["", "k", "M", "G", "T", "P", "E"]


def human(value: float) -> str:
    """Write a number >= 0 with three digits and a decimal prefix: 1.23 M."""
    # A number that rounds to 1000 gets the next prefix: 999.6 k is 1 M.
    size, prefix = pick_unit_and_suffix(int(value / 0.9995), PREFIXES, 1000)
    return f"{value / size:.3g} {prefix}"


def human_bytes(value: float) -> str:
    """Write a number of bytes with three digits and a decimal unit: 1.23 MB."""
    return human(value) + "B"


def byte_unit(largest: float) -> tuple[int, str]:
    """Return the size in bytes and the name of the unit for an axis that ends at `largest`."""
    size, prefix = pick_unit_and_suffix(int(largest), PREFIXES, 1000)
    return size, prefix + "B"


def clock(seconds: float) -> str:
    """Write a duration as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def duration(seconds: float) -> str:
    """Write a duration in a short form: 12.3 s, 4:05, 1:02:03."""
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def ago(seconds: float) -> str:
    """Write how long ago something was, in one unit: 12 s, 5 min, 3 h, 2 days."""
    units = ((172800.0, 86400.0, "days"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"))
    size, name = next(((s, n) for least, s, n in units if seconds >= least), (1.0, "s"))
    return f"{max(seconds, 0.0) / size:.0f} {name} ago"


def time_unit(longest: float) -> tuple[float, str]:
    """Return the seconds and the name of the unit for an axis that ends at `longest` seconds."""
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    return next(((size, name) for size, name in units if longest >= 3 * size), (1.0, "seconds"))
