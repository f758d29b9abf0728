"""Errors of lookups: resources that do not exist or that the caller may not read."""

import re

from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError

# The SDK and the engine prefix the provider's message.
_PREFIX = re.compile(r"(invoke of \S+ failed|invocation of \S+ returned an error): ?")


def lookup_failure(error: Exception) -> str:
    """Return the message of a failed lookup on one line."""
    return f"lookup failed: {' '.join(_PREFIX.sub('', str(error)).split()).rstrip('.')}"


def lookup_error(key: str, value: str, error: Exception) -> InputError:
    """Return the error of a setting whose resource cannot be looked up. `key` is relative to the cluster's settings."""
    fix = "Use a resource of this account and region, or request permission to read it"
    return InputError([invalid_setting(key, value, lookup_failure(error), fix, "lookup_failed")])
