"""Budgets as AWS keeps them: changed in place, with tags, and one notification of a kind and threshold each."""

import json
from typing import Any

from moto.budgets.exceptions import DuplicateRecordException, NotFoundException
from moto.budgets.models import Budget, BudgetsBackend
from moto.budgets.responses import BudgetsResponse

from rehearsal.aws.extension import extend

_KNOWN = frozenset(["BudgetName", "BudgetType", "BudgetLimit", "CostFilters", "CostTypes", "TimeUnit", "TimePeriod"])


def install() -> None:
    """moto has no UpdateBudget and knows no tags."""
    make, notify, forget = Budget.__init__, BudgetsBackend.create_notification, BudgetsBackend.delete_notification
    create = BudgetsResponse.create_budget

    def made(self: Any, budget: dict[str, Any], notifications: list[dict[str, Any]]) -> None:
        if unknown := set(budget) - _KNOWN:
            raise NotImplementedError(f"a budget with {', '.join(sorted(unknown))}")
        make(self, budget, notifications)
        self.tags = {}

    def create_budget(self: Any) -> str:
        answer = create(self)
        tags = self._get_param("ResourceTags") or []
        self.backend.budgets[self._get_param("AccountId")][self._get_param("Budget")["BudgetName"]].tags = {
            tag["Key"]: tag["Value"] for tag in tags
        }
        return answer

    def update_budget(self: Any) -> str:
        account, new = self._get_param("AccountId"), self._get_param("NewBudget")
        old = _found(self.backend, account, new["BudgetName"], "update")
        period = {"TimePeriod": old.budget["TimePeriod"]} | new
        updated: Any = Budget(period, [])
        updated.notifications, updated.tags = old.notifications, old.tags
        self.backend.budgets[account][new["BudgetName"]] = updated
        return json.dumps({})

    def create_notification(
        self: Any, account_id: str, budget_name: str, notification: dict[str, Any], subscribers: Any
    ) -> None:
        budget = self.budgets[account_id].get(budget_name)
        if budget and any(each.details == notification for each in budget.notifications):
            raise DuplicateRecordException("notification", f"{notification}")
        notify(self, account_id, budget_name, notification, subscribers)

    def delete_notification(self: Any, account_id: str, budget_name: str, notification: dict[str, Any]) -> None:
        budget = self.budgets[account_id].get(budget_name)
        if budget and all(each.details != notification for each in budget.notifications):
            raise NotFoundException("Unable to delete notification - the notification doesn't exist.")
        forget(self, account_id, budget_name, notification)

    def describe_subscribers_for_notification(self: Any) -> str:
        budget = _found(self.backend, self._get_param("AccountId"), self._get_param("BudgetName"), "describe")
        wanted = self._get_param("Notification")
        subscribers = [each.subscribers for each in budget.notifications if each.details == wanted]
        return json.dumps({"Subscribers": subscribers[0] if subscribers else []})

    extend(Budget, __init__=made)
    extend(BudgetsBackend, create_notification, delete_notification)
    extend(BudgetsResponse, create_budget, update_budget, describe_subscribers_for_notification)
    extend(BudgetsResponse, tag_resource, untag_resource, list_tags_for_resource)


def tag_resource(self: Any) -> str:
    _tagged(self).tags.update({tag["Key"]: tag["Value"] for tag in self._get_param("ResourceTags")})
    return json.dumps({})


def untag_resource(self: Any) -> str:
    budget = _tagged(self)
    budget.tags = {key: value for key, value in budget.tags.items() if key not in self._get_param("ResourceTagKeys")}
    return json.dumps({})


def list_tags_for_resource(self: Any) -> str:
    tags = _tagged(self).tags
    return json.dumps({"ResourceTags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())]})


def _tagged(response: Any) -> Any:
    """The budget of an ARN arn:aws:budgets::ACCOUNT:budget/NAME."""
    parts = response._get_param("ResourceARN").split(":", 5)
    return _found(response.backend, parts[4], parts[5].removeprefix("budget/"), "tag")


def _found(backend: Any, account: str, name: str, act: str) -> Any:
    if name not in backend.budgets[account]:
        raise NotFoundException(f"Unable to {act} budget: {name} - the budget doesn't exist.")
    return backend.budgets[account][name]
