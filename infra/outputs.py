"""Stack outputs: URIs, commands and cost."""

from typing import Any

import pulumi

from infra.scope import Scope
from trainyard.config.cost import cost_items, max_run_usd, usd_per_hour
from trainyard.config.prices import prices
from trainyard.config.settings import StackSettings

_COMMAND = "trainyard"


def commands(stack: str, region: str) -> dict[str, str]:
    """Return the operator's commands by purpose."""
    profile = pulumi.Config("aws").get("profile")
    prefix = f"AWS_REGION={region} {f'AWS_PROFILE={profile} ' if profile else ''}{_COMMAND}"
    return {
        "run": f"{prefix} run -s {stack}",
        "status": f"{prefix} status -s {stack}",
        "logs": f"{prefix} logs -s {stack} --follow",
        "results": f"{prefix} results -s {stack} --to results",
        "stop": f"{prefix} stop -s {stack}",
        "destroy": f"{prefix} destroy -s {stack}",
    }


def cost(settings: StackSettings) -> dict[str, Any]:
    """Return the cost at list prices, USD: per hour, until the time limit, and by item."""
    return {
        "usd_per_hour": usd_per_hour(settings),
        "max_run_usd": max_run_usd(settings),
        "time_limit_minutes": settings.job.time_limit_minutes,
        "prices": f"list prices of {prices().region}, {prices().dated}; an estimate elsewhere",
        "items": [
            {"name": item.name, "count": item.count, "usd_per_hour": round(item.usd_per_hour, 4)}
            for item in cost_items(settings)
        ],
    }


def export(scope: Scope, settings: StackSettings, data_bucket: pulumi.Output[str], **outputs: Any) -> None:
    """Export the outputs of a stack, and additional `outputs`."""
    pulumi.export("data_uri", pulumi.Output.concat("s3://", data_bucket, "/datasets/"))
    pulumi.export("runs_uri", pulumi.Output.concat("s3://", data_bucket, "/runs/"))
    pulumi.export("commands", commands(scope.stack, scope.region))
    pulumi.export("cost", cost(settings))
    pulumi.export("data_bucket", data_bucket)
    for name, value in {"account": scope.account, "region": scope.region, **outputs}.items():
        pulumi.export(name, value)
