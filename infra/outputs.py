"""What `pulumi stack output` tells a user: where things lie, what to type next, what it costs."""

from typing import Any

import pulumi

from trainyard.config.demand import bill, capped_usd, hourly_usd
from trainyard.config.prices import prices
from trainyard.config.settings import StackSettings

_COMMAND = ".venv/bin/python -m trainyard"


def commands(stack: str, region: str) -> dict[str, str]:
    """The operator's next commands, by what they are for."""
    profile = pulumi.Config("aws").get("profile")
    ours = f"AWS_REGION={region} {f'AWS_PROFILE={profile} ' if profile else ''}{_COMMAND}"
    return {
        "status": f"{ours} status -s {stack}",
        "follow": f"{ours} logs -s {stack} --follow",
        "results": f"{ours} results -s {stack} --to results",
        "end_job": f"{ours} stop -s {stack}",
        "end_all": f"pulumi destroy -s {stack}",
    }


def cost(settings: StackSettings) -> dict[str, Any]:
    """USD at list prices: by the hour, at most until the time limit, and item by item."""
    return {
        "hourly_usd": hourly_usd(settings),
        "capped_usd": capped_usd(settings),
        "until_minutes": settings.job.time_limit_minutes,
        "prices": f"list prices of {prices().region}, {prices().dated}; an estimate elsewhere",
        "items": [
            {"what": item.what, "count": item.count, "hourly_usd": round(item.hourly, 4)} for item in bill(settings)
        ],
    }


def export(
    stack: str,
    region: str,
    settings: StackSettings,
    data_bucket: pulumi.Output[str],
    **more: Any,
) -> None:
    """Export them, and whatever else is given."""
    pulumi.export("data_uri", pulumi.Output.concat("s3://", data_bucket, "/datasets/"))
    pulumi.export("runs_uri", pulumi.Output.concat("s3://", data_bucket, "/runs/"))
    pulumi.export("commands", commands(stack, region))
    pulumi.export("cost", cost(settings))
    pulumi.export("data_bucket", data_bucket)
    for name, value in more.items():
        pulumi.export(name, value)
