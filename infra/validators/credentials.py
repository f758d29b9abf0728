"""Validation of the operator's AWS credentials before a launch, which uses them until the job has started."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from trainyard.config.settings import StackSettings

EXPIRATION = "AWS_CREDENTIAL_EXPIRATION"
WITHOUT_CREDENTIALS = (
    "Without credentials it fails, and only the lease terminates its nodes. Renew them, or use a profile whose "
    "credentials are refreshed"
)


def expiring_credentials(environment: Mapping[str, str], settings: StackSettings, now: datetime) -> str | None:
    """Return a warning if temporary credentials of the environment may expire during a launch at `now`, else None.

    The launch uses them while it waits for capacity that it reserves, and then until the job has started.

    `aws configure export-credentials --format env` exports the expiration. SDKs refresh the credentials of profiles
    (IAM Identity Center, assumed roles) and of instance roles themselves. Reading the environment needs no AWS call.
    """
    text = environment.get(EXPIRATION)
    if not environment.get("AWS_ACCESS_KEY_ID") or not environment.get("AWS_SESSION_TOKEN"):
        return None  # an access key without a session token does not expire
    startup, wait = settings.launch.startup_timeout_minutes, settings.capacity.wait_minutes
    limit, duration = startup, f"launch.startup_timeout_minutes ({startup:g})"
    if settings.reserves_any_capacity and wait:
        limit, duration = wait + startup, f"capacity.wait_minutes ({wait:g}) and {duration}"
    if not text:
        return (
            f"AWS_SESSION_TOKEN is temporary and {EXPIRATION} is not set, so its expiration is unknown. The launch may "
            f"last {duration}. {WITHOUT_CREDENTIALS}"
        )
    try:
        expiration = datetime.fromisoformat(text)
    except ValueError:
        return f"{EXPIRATION} = {text!r} is not a time in ISO 8601: the expiration is not validated"
    expiration = expiration.astimezone(UTC) if expiration.tzinfo else expiration.replace(tzinfo=UTC)
    if expiration >= now + timedelta(minutes=limit):
        return None
    minutes = max(0.0, (expiration - now).total_seconds() / 60)
    return (
        f"the AWS credentials of the environment expire in {minutes:.0f} minutes, at {expiration:%Y-%m-%d %H:%M} UTC, "
        f"and the launch may last {duration}. {WITHOUT_CREDENTIALS}"
    )
