"""Change one value of nested settings by its dotted key."""

from typing import Any


def set_value(settings: Any, key: str, value: Any) -> bool:
    """Set the value of a dotted key such as `capacity.reserve` in place, and create missing sections.

    Returns False when a part of the key is no section; sections before that part may have been created.
    """
    *sections, name = key.split(".")
    for section in sections:
        settings = settings.setdefault(section, {}) if isinstance(settings, dict) else None
    if not isinstance(settings, dict):
        return False
    settings[name] = value
    return True
