"""Rules about what a run may cost."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.demand import capped_usd, hourly_usd
from trainyard.config.settings import StackSettings
from trainyard.config.validators.rule import Rule


def cost_stays_below_its_cap(settings: StackSettings, root: Path) -> Iterator[Problem]:
    cap, total = settings.guardrails.max_cost_usd, capped_usd(settings)
    if cap is not None and total > cap:
        minutes, hour = settings.job.time_limit_minutes, hourly_usd(settings)
        affordable = int(cap / hour * 60)
        shorter = f"set job.time_limit_minutes to {affordable} or less, " if affordable else ""
        yield Problem(
            key=f"{CONFIG_KEY}.guardrails.max_cost_usd",
            value=cap,
            why=f"at {hour:.2f} USD an hour a run may cost {total:.2f} USD until job.time_limit_minutes ({minutes:g})",
            fix=f"Raise it, {shorter}or choose fewer nodes or a cheaper type",
        )


RULES = (
    Rule(
        cost_stays_below_its_cap,
        (
            *("guardrails.max_cost_usd", "job.time_limit_minutes", "instance_type", "nodes", "capacity"),
            *("head_instance_type", "root_volume_gib", "fsx", "network.existing", "network.nat"),
        ),
    ),
)
