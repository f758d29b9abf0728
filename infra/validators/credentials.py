"""Validation of the operator's AWS credentials before a launch, which uses them until the job has started."""

from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.quantity import quantity

EXPIRATION = "AWS_CREDENTIAL_EXPIRATION"
WITHOUT_CREDENTIALS = (
    "Without credentials it fails, and only the lease terminates its nodes. Renew them, or use a profile whose "
    "credentials are refreshed"
)


def expiring_credentials(
    environment: Mapping[str, str], settings: StackSettings, now: datetime, profile: str | None = None
) -> str | None:
    """Return a warning if temporary credentials may expire during a launch at `now`, else None.

    They are those of the environment, or of `profile` if its files have a session token.

    The launch uses them while it waits for capacity that it reserves, and then until the job has started.

    `aws configure export-credentials --format env` exports the expiration. SDKs refresh the credentials of profiles
    (IAM Identity Center, assumed roles) and of instance roles themselves. Reading them needs no AWS call.
    """
    startup, wait = settings.launch.startup_timeout_minutes, settings.capacity.wait_minutes
    limit, duration = startup, f"launch.startup_timeout_minutes ({startup:g})"
    if settings.reserves_any_capacity and wait:
        limit, duration = wait + startup, f"capacity.wait_minutes ({wait:g}) and {duration}"
    if source := _without_expiration(environment, profile or "default"):
        return f"{source}, so its expiration is unknown. The launch may last {duration}. {WITHOUT_CREDENTIALS}"
    if not (text := environment.get(EXPIRATION)) or not _is_temporary(environment):
        return None
    try:
        expiration = datetime.fromisoformat(text)
    except ValueError:
        return f"{EXPIRATION} = {text!r} is not a time in ISO 8601: the expiration is not validated"
    expiration = expiration.astimezone(UTC) if expiration.tzinfo else expiration.replace(tzinfo=UTC)
    if expiration >= now + timedelta(minutes=limit):
        return None
    minutes = max(0.0, (expiration - now).total_seconds() / 60)
    return (
        f"the AWS credentials of the environment expire in {quantity(round(minutes), 'minute')}, "
        f"at {expiration:%Y-%m-%d %H:%M} UTC, and the launch may last {duration}. {WITHOUT_CREDENTIALS}"
    )


def _is_temporary(environment: Mapping[str, str]) -> bool:
    """Return whether the environment has an access key with a session token; without one it does not expire."""
    return bool(environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SESSION_TOKEN"))


def _without_expiration(environment: Mapping[str, str], profile: str) -> str | None:
    """Return a text on a session token that has no expiration; None without such a token."""
    if _is_temporary(environment) and not environment.get(EXPIRATION):
        return f"AWS_SESSION_TOKEN is temporary and {EXPIRATION} is not set"
    if not environment.get("AWS_ACCESS_KEY_ID") and _has_session_token(profile, environment):
        return f"the aws_session_token of profile {profile} is temporary"
    return None


def _has_session_token(profile: str, environment: Mapping[str, str]) -> bool:
    """Return whether the AWS CLI's files have a session token for the profile, which SDKs do not refresh.

    Source: AWS SDKs and Tools reference guide, "Shared config and credentials files".
    """
    folder = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    config_section = profile if profile == "default" else f"profile {profile}"
    files = (
        (environment.get("AWS_SHARED_CREDENTIALS_FILE", folder / "credentials"), profile),
        (environment.get("AWS_CONFIG_FILE", folder / "config"), config_section),
    )
    for file, section in files:
        parser = ConfigParser(interpolation=None, strict=False)
        with suppress(ConfigParserError, OSError, UnicodeDecodeError):  # the provider reports an invalid file
            parser.read(file)
        if parser.has_option(section, "aws_session_token"):
            return True
    return False
