"""Budgets: update in place, tags, and at most one notification per type and threshold."""

import json
from typing import Any

from moto.budgets.exceptions import DuplicateRecordException, NotFoundException
from moto.budgets.models import Budget, BudgetsBackend
from moto.budgets.responses import BudgetsResponse

from rehearsal.aws.moto_extension import extend

_SUPPORTED_KEYS = frozenset(
    ["BudgetName", "BudgetType", "BudgetLimit", "CostFilters", "CostTypes", "TimeUnit", "TimePeriod"]
)


def install() -> None:
    """Extend moto, which has no UpdateBudget and no tags."""
    moto_init, moto_create_notification, moto_delete_notification = (
        Budget.__init__,
        BudgetsBackend.create_notification,
        BudgetsBackend.delete_notification,
    )
    moto_create = BudgetsResponse.create_budget

    def init(self: Any, budget: dict[str, Any], notifications: list[dict[str, Any]]) -> None:
        if unsupported := set(budget) - _SUPPORTED_KEYS:
            raise NotImplementedError(f"a budget with {', '.join(sorted(unsupported))}")
        moto_init(self, budget, notifications)
        self.tags = {}

    def create_budget(self: Any) -> str:
        response = moto_create(self)
        tags = self._get_param("ResourceTags") or []
        self.backend.budgets[self._get_param("AccountId")][self._get_param("Budget")["BudgetName"]].tags = {
            tag["Key"]: tag["Value"] for tag in tags
        }
        return response

    def update_budget(self: Any) -> str:
        account, new = self._get_param("AccountId"), self._get_param("NewBudget")
        old = _find(self.backend, account, new["BudgetName"], "update")
        content = {"TimePeriod": old.budget["TimePeriod"]} | new
        updated: Any = Budget(content, [])
        updated.notifications, updated.tags = old.notifications, old.tags
        self.backend.budgets[account][new["BudgetName"]] = updated
        return json.dumps({})

    def create_notification(
        self: Any, account_id: str, budget_name: str, notification: dict[str, Any], subscribers: Any
    ) -> None:
        budget = self.budgets[account_id].get(budget_name)
        if budget and any(entry.details == notification for entry in budget.notifications):
            raise DuplicateRecordException("notification", f"{notification}")
        moto_create_notification(self, account_id, budget_name, notification, subscribers)

    def delete_notification(self: Any, account_id: str, budget_name: str, notification: dict[str, Any]) -> None:
        budget = self.budgets[account_id].get(budget_name)
        if budget and all(entry.details != notification for entry in budget.notifications):
            raise NotFoundException("Unable to delete notification - the notification doesn't exist.")
        moto_delete_notification(self, account_id, budget_name, notification)

    def describe_subscribers_for_notification(self: Any) -> str:
        budget = _find(self.backend, self._get_param("AccountId"), self._get_param("BudgetName"), "describe")
        notification = self._get_param("Notification")
        subscribers = [entry.subscribers for entry in budget.notifications if entry.details == notification]
        return json.dumps({"Subscribers": subscribers[0] if subscribers else []})

    extend(Budget, __init__=init)
    extend(BudgetsBackend, create_notification, delete_notification)
    extend(BudgetsResponse, create_budget, update_budget, describe_subscribers_for_notification)
    extend(BudgetsResponse, tag_resource, untag_resource, list_tags_for_resource)


def tag_resource(self: Any) -> str:
    """Add tags to a budget."""
    _budget_of_arn(self).tags.update({tag["Key"]: tag["Value"] for tag in self._get_param("ResourceTags")})
    return json.dumps({})


def untag_resource(self: Any) -> str:
    """Remove tags from a budget."""
    budget = _budget_of_arn(self)
    budget.tags = {key: value for key, value in budget.tags.items() if key not in self._get_param("ResourceTagKeys")}
    return json.dumps({})


def list_tags_for_resource(self: Any) -> str:
    """Return the tags of a budget."""
    tags = _budget_of_arn(self).tags
    return json.dumps({"ResourceTags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]})


def _budget_of_arn(response: Any) -> Any:
    """Return the budget with the request's ARN, arn:aws:budgets::ACCOUNT:budget/NAME."""
    parts = response._get_param("ResourceARN").split(":", 5)
    return _find(response.backend, parts[4], parts[5].removeprefix("budget/"), "tag")


def _find(backend: Any, account: str, name: str, action: str) -> Any:
    if name not in backend.budgets[account]:
        raise NotFoundException(f"Unable to {action} budget: {name} - the budget doesn't exist.")
    return backend.budgets[account][name]
