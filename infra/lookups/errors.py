"""What a stack names and AWS does not find, or does not show us."""

import re

from trainyard.base import CONFIG_KEY, InputError, Problem

# What the SDK and the engine put before the provider's own words.
_FRAME = re.compile(r"(invoke of \S+ failed|invocation of \S+ returned an error): ?")


def reason(error: Exception) -> str:
    """What AWS, or the provider, says of it: one line."""
    return f"AWS does not give it: {' '.join(_FRAME.sub('', str(error)).split()).rstrip('.')}"


def absent(key: str, value: str, error: Exception) -> InputError:
    """`key`: below the cluster's."""
    fix = "Name one of this account and region, or ask for the right to look at it"
    return InputError([Problem(key=f"{CONFIG_KEY}.{key}", value=value, why=reason(error), fix=fix)])
