"""Times in messages."""

from datetime import UTC, datetime

from trainyard.quantity import quantity


def format_time(unix_time: float) -> str:
    """Format a Unix time for people, in UTC."""
    return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_age(seconds: float) -> str:
    """Format the time since an event for people, in its largest unit, such as `3 hours ago`."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{quantity(int(seconds // length), unit)} ago"
    return f"{quantity(max(int(seconds), 0), 'second')} ago"


def format_duration(seconds: float) -> str:
    """Format a duration for people: `24 s`, `12 min`, `3 h 05 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
