"""User errors about the access to AWS: credentials, profile, region, network. Without boto3, whose import is slow."""

import os
from collections.abc import Iterable

from trainyard.errors import Problem, did_you_mean

ACCESS_KEY, PROFILE, REGION = "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION"


def selected_profile() -> str | None:
    """Return the AWS profile of the environment; None where it selects none."""
    return os.environ.get(PROFILE) or None


def credentials_missing(profile: str | None) -> Problem:
    """Return the problem of a user without AWS credentials."""
    reason = "no AWS credentials were found in the environment, in the files of the AWS CLI, or on this instance"
    fix = f"Sign in: {_with_profile('aws sso login', profile)}, or aws configure; or set AWS_PROFILE to another profile"
    return Problem(PROFILE, profile, reason, fix, "credentials_missing")


def credentials_expired(profile: str | None, details: str, command: str = "aws sso login") -> Problem:
    """Return the problem of expired credentials. `details`: AWS's message; `command`: it renews those of a profile."""
    key, value, fix = _source(profile, _with_profile(command, profile))
    return Problem(
        key, value, f"the AWS credentials are expired: {details}", f"Renew them: {fix}", "credentials_expired"
    )


def credentials_invalid(profile: str | None, details: str) -> Problem:
    """Return the problem of credentials that AWS does not accept. `details`: AWS's message."""
    key, value, fix = _source(profile, "aws configure, or AWS_PROFILE for another profile")
    reason = f"AWS does not accept the credentials: {details}"
    return Problem(key, value, reason, f"Correct them, and the clock of this machine: {fix}", "credentials_invalid")


def profile_missing(profile: str | None, known: Iterable[str] = ()) -> Problem:
    """Return the problem of an AWS profile that no file of the AWS CLI has. `known`: the profiles that they have."""
    names = sorted(known)
    use = f"Use one of {', '.join(names)}" if names else "Use another profile"
    fix = f"{did_you_mean(profile or '', names)}{use}, or create it: {_with_profile('aws configure', profile)}"
    return Problem(PROFILE, profile, "the files of the AWS CLI have no such profile", fix, "profile_missing")


def region_missing(fix: str = "Set it to the stack's aws:region") -> Problem:
    """Return the problem of a user without AWS region."""
    return Problem(REGION, None, "no AWS region is set", fix, "region_missing")


def endpoint_unreachable(endpoint: str, details: str) -> Problem:
    """Return the problem of an endpoint of AWS without connection. `endpoint`: URL; `details`: the client's message."""
    fix = "Check the network, the proxy (HTTPS_PROXY) and the name of the region"
    return Problem("endpoint", endpoint, f"no connection to AWS: {details}", fix, "endpoint_unreachable")


def certificate_untrusted(endpoint: str, details: str) -> Problem:
    """Return the problem of an endpoint whose TLS certificate is not trusted. `details`: the client's message."""
    reason = f"the TLS certificate is not trusted: {details}"
    fix = (
        "If a proxy intercepts TLS, add its CA certificate to those of the system, or set AWS_CA_BUNDLE and "
        "SSL_CERT_FILE to a PEM file with it; for nodes, set node.ca_certificate"
    )
    return Problem("endpoint", endpoint, reason, fix, "certificate_untrusted")


def _source(profile: str | None, profile_fix: str) -> tuple[str, str | None, str]:
    """Return key and value of the setting that selects the credentials, and how to renew them.

    Keys of the environment precede a profile (boto3 guide, "Credentials"). They are not printed.
    """
    if os.environ.get(ACCESS_KEY):
        return ACCESS_KEY, None, "export the new keys and session token, or unset them to use a profile"
    return PROFILE, profile, profile_fix


def _with_profile(command: str, profile: str | None) -> str:
    return f"{command} --profile {profile}" if profile else command
