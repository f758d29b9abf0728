"""Validators of the cost of a run."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.config.cost import max_run_usd, usd_per_hour
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem


def cost_below_limit(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A run until its time limit costs no more than `guardrails.max_cost_usd`."""
    limit, total = settings.guardrails.max_cost_usd, max_run_usd(settings)
    if limit is not None and total > limit:
        minutes, hourly = settings.job.time_limit_minutes, usd_per_hour(settings)
        affordable = int(limit / hourly * 60)
        shorter = f"set job.time_limit_minutes to {affordable} or less, " if affordable else ""
        yield invalid_setting(
            "guardrails.max_cost_usd",
            limit,
            f"at {hourly:.2f} USD an hour a run may cost {total:.2f} USD until job.time_limit_minutes ({minutes:g})",
            f"Increase it, {shorter}or choose fewer nodes or a cheaper type",
        )


def budget_amount_of_budget(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`guardrails.budget_usd` is the amount of the budget that `guardrails.budget` enables."""
    guardrails = settings.guardrails
    if guardrails.budget_usd is not None and not guardrails.budget:
        reason, fix = "guardrails.budget is false", "Remove it, or guardrails.budget"
        yield invalid_setting("guardrails.budget_usd", guardrails.budget_usd, reason, fix)


VALIDATORS = (cost_below_limit, budget_amount_of_budget)
