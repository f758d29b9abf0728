"""Errors of lookups: no access to AWS, resources that do not exist or that the caller may not read."""

import re
from collections.abc import Callable

import pulumi

from trainyard.aws import access_problems
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem

# The SDK and the engine prefix the provider's message.
_PREFIX = re.compile(r"(invoke of \S+ failed|invocation of \S+ returned an error): ?")
_ACCESS_ERRORS: tuple[tuple[str, Callable[[str | None, str], Problem]], ...] = (
    # The provider's texts for credentials that it cannot use. A later row is for what no earlier row matches.
    # Source: pulumi-aws, credentialsFailureReason and the texts in provider/errors/; its issues 2713 and 3023.
    (r"no EC2 IMDS role found", lambda profile, _: access_problems.credentials_missing(profile)),
    (
        r"failed to get shared config profile|The AWS profile .* was not found",
        lambda profile, _: access_problems.profile_missing(profile),
    ),
    (
        r"ExpiredToken|security token included in the request is expired|AWS credentials have expired"
        r"|failed to refresh cached (SSO )?credentials|AWS login session .* has expired",
        access_problems.credentials_expired,
    ),
    (
        r"InvalidClientTokenId|Invalid credentials configured|security token included in the request is invalid",
        access_problems.credentials_invalid,
    ),
    (r"no valid credential sources", lambda profile, _: access_problems.credentials_missing(profile)),
    (r"unable to validate AWS credentials", access_problems.credentials_invalid),
    (r"Missing region", lambda *_: access_problems.region_missing()),
)


_MISSING = re.compile(r"not ?found|empty result|couldn't find|NoSuchBucket|NoSuchKey|404", re.IGNORECASE)


def is_missing(error: BaseException) -> bool:
    """Return whether the lookup of a resource failed because it does not exist."""
    return bool(_MISSING.search(str(error)))


def lookup_failure(error: Exception) -> str:
    """Return the message of a failed lookup on one line."""
    return f"lookup failed: {' '.join(_PREFIX.sub('', str(error)).split()).rstrip('.')}"


def access_error(error: Exception) -> InputError | None:
    """Return the user error for a failed lookup of a provider without access to AWS; None for any other error.

    The provider's errors are texts. It validates credentials before the first lookup, or in it.
    """
    text = lookup_failure(error)
    profile = pulumi.Config("aws").get("profile") or access_problems.selected_profile()
    for pattern, problem in _ACCESS_ERRORS:
        if re.search(pattern, text, re.IGNORECASE):
            return InputError([problem(profile, text)])
    return None


def lookup_error(key: str, value: str, error: Exception) -> InputError:
    """Return the error of a setting whose resource cannot be looked up. `key` is relative to the cluster's settings."""
    fix = "Use a resource of this account and region, or request permission to read it"
    return InputError([invalid_setting(key, value, lookup_failure(error), fix, "lookup_failed")])
