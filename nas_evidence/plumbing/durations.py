"""Durations in words, exact and rough."""


def duration(seconds: float) -> str:
    """Return a time span in words.

    >>> [duration(s) for s in (0.4, 75, 5400)]
    ['0.4 s', '1.2 min', '1.5 h']
    """
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def rough_duration(seconds: float) -> str:
    """Return a forecast, rounded.

    >>> rough_duration(20), rough_duration(170), rough_duration(9000)
    ('less than a minute', 'about 3 min', 'about 2.5 h')
    """
    if seconds < 45:
        return "less than a minute"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {duration(seconds)}"
