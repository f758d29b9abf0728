"""Numbers of things in messages."""


def quantity(count: float, noun: str) -> str:
    """Return the number with the noun in singular or plural, such as `1 node` or `2 processes`."""
    suffix = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count if isinstance(count, int) else f'{count:g}'} {noun}{suffix}"
