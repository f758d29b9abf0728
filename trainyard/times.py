"""Times in messages."""

from datetime import UTC, datetime


def format_time(unix_time: float) -> str:
    """Format a Unix time for people, in UTC."""
    return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M:%S} UTC"
