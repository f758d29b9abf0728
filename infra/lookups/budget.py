"""Look up whether the caller may manage budgets."""

import re

import pulumi
import pulumi_aws as aws

from infra.lookups.errors import lookup_failure

_DENIED = re.compile(r"AccessDenied|not authorized|explicit deny", re.IGNORECASE)


def budgets_allowed(stack: str) -> bool:
    """Return whether the caller may read budgets, by the lookup of a budget that need not exist; warn if not.

    Organizations deny `budgets:*` to member accounts by service control policies, and a resource that fails cannot
    become a warning later. Other errors count as allowed: a budget must not be deleted because a lookup was throttled.
    """
    try:
        aws.budgets.get_budget(name=f"trainyard-{stack}")
    except Exception as error:
        if _DENIED.search(str(error)):
            pulumi.log.warn(
                f"the stack has no AWS budget: {lookup_failure(error)}. Request budgets:ViewBudget and "
                "budgets:ModifyBudget, or set trainyard:cluster.guardrails.budget to false"
            )
            return False
    return True
