"""CloudWatch metric alarms and AWS budgets."""

from typing import Any

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, api_name, input_keys
from rehearsal.adapter.refresh import tag_dict, to_input_names
from rehearsal.adapter.tagging import diff_tags, update_tags


class MetricAlarm(Handler):
    """A CloudWatch metric alarm."""

    type = "aws:cloudwatch/metricAlarm:MetricAlarm"
    keys = input_keys(
        "name",
        "namespace",
        "metricName",
        "dimensions",
        "statistic",
        "period",
        "evaluationPeriods",
        "threshold",
        "comparisonOperator",
        "treatMissingData",
        "alarmDescription",
        "alarmActions",
        "okActions",
        "tags",
    )
    name_input = "name"
    replace_on_changes = frozenset(["name"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the alarm."""
        name = self.physical_name(call)
        self._put(call, name, Tags=call.tags)
        return name, self._outputs(call, name)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Put the alarm again. PutMetricAlarm ignores tags of an existing alarm, so tags are updated separately."""
        cloudwatch = call.aws.client("cloudwatch")
        self._put(call, call.id)
        outputs = self._outputs(call, call.id)
        update_tags(call, cloudwatch.tag_resource, cloudwatch.untag_resource, ResourceARN=outputs["arn"])
        return outputs

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        cloudwatch = call.aws.client("cloudwatch")
        alarms = cloudwatch.describe_alarms(AlarmNames=[call.id])["MetricAlarms"]
        if not alarms:
            return None
        inputs = to_input_names(alarms[0], OKActions="okActions") | {
            "name": call.id,
            "dimensions": {item["Name"]: item["Value"] for item in alarms[0]["Dimensions"]},
            "tags": tag_dict(cloudwatch.list_tags_for_resource(ResourceARN=alarms[0]["AlarmArn"])["Tags"]),
        }
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Delete the alarm."""
        call.aws.client("cloudwatch").delete_alarms(AlarmNames=[call.id])

    def _put(self, call: HandlerCall, name: str, **tags: Any) -> None:
        arguments = {
            "AlarmActions" if key == "alarmActions" else "OKActions" if key == "okActions" else api_name(key): value
            for key, value in call.inputs.items()
            if key not in ("name", "tags", "dimensions")
        }
        dimensions = [{"Name": key, "Value": value} for key, value in sorted(call.inputs.get("dimensions", {}).items())]
        call.aws.client("cloudwatch").put_metric_alarm(AlarmName=name, Dimensions=dimensions, **arguments, **tags)

    def _outputs(self, call: HandlerCall, name: str) -> dict[str, Any]:
        (alarm,) = call.aws.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
        return {"name": name, "arn": alarm["AlarmArn"]}


class Budget(Handler):
    """An AWS budget. As in the provider, its notifications are created one by one after the budget."""

    type = "aws:budgets/budget:Budget"
    keys = input_keys(
        "name",
        "budgetType",
        "limitAmount",
        "limitUnit",
        "timeUnit",
        "tags",
        costFilters=input_keys("name", "values"),
        notifications=input_keys(
            "comparisonOperator",
            "threshold",
            "thresholdType",
            "notificationType",
            "subscriberSnsTopicArns",
        ),
    )
    name_input = "name"
    replace_on_changes = frozenset(["name"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the budget, then its notifications."""
        budgets, account = call.aws.client("budgets"), _account(call)
        name = self.physical_name(call)
        budgets.create_budget(AccountId=account, Budget=self._budget(call, name), ResourceTags=call.tags)
        self._create_notifications(call, account, name)
        return f"{account}:{name}", self._outputs(call, name)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the budget, and replace all its notifications when one changed."""
        budgets = call.aws.client("budgets")
        account, _, name = call.id.partition(":")
        budgets.update_budget(AccountId=account, NewBudget=self._budget(call, name))
        if call.has_changed("notifications"):
            for old in _notifications(budgets, account, name):
                budgets.delete_notification(AccountId=account, BudgetName=name, Notification=old)
            self._create_notifications(call, account, name)
        outputs = self._outputs(call, name)
        put, removed = diff_tags(call)
        if put:
            budgets.tag_resource(ResourceARN=outputs["arn"], ResourceTags=put)
        if removed:
            budgets.untag_resource(ResourceARN=outputs["arn"], ResourceTagKeys=removed)
        return outputs

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        budgets = call.aws.client("budgets")
        account, _, name = call.id.partition(":")
        budget = budgets.describe_budget(AccountId=account, BudgetName=name)["Budget"]
        arn = self._outputs(call, name)["arn"]
        inputs = {
            "name": name,
            "budgetType": budget["BudgetType"],
            "timeUnit": budget["TimeUnit"],
            "limitAmount": budget["BudgetLimit"]["Amount"],
            "limitUnit": budget["BudgetLimit"]["Unit"],
            "costFilters": [{"name": key, "values": values} for key, values in budget.get("CostFilters", {}).items()],
            "notifications": [self._notification(call, old) for old in _notifications(budgets, account, name)],
            "tags": tag_dict(budgets.list_tags_for_resource(ResourceARN=arn)["ResourceTags"]),
        }
        return ReadResult(inputs=inputs)

    def _notification(self, call: HandlerCall, notification: dict[str, Any]) -> dict[str, Any]:
        """Return a notification as an input, with its subscribers."""
        account, _, name = call.id.partition(":")
        subscribers = call.aws.client("budgets").describe_subscribers_for_notification(
            AccountId=account, BudgetName=name, Notification=notification
        )["Subscribers"]
        topics = [each["Address"] for each in subscribers if each["SubscriptionType"] == "SNS"]
        return {**to_input_names(notification), "subscriberSnsTopicArns": topics}

    def delete(self, call: HandlerCall) -> None:
        """Delete the budget with its notifications."""
        account, _, name = call.id.partition(":")
        call.aws.client("budgets").delete_budget(AccountId=account, BudgetName=name)

    def _budget(self, call: HandlerCall, name: str) -> dict[str, Any]:
        inputs = call.inputs
        budget: dict[str, Any] = {
            "BudgetName": name,
            "BudgetType": inputs["budgetType"],
            "TimeUnit": inputs["timeUnit"],
            "BudgetLimit": {"Amount": str(inputs["limitAmount"]), "Unit": inputs["limitUnit"]},
        }
        if "costFilters" in inputs:
            budget["CostFilters"] = {item["name"]: list(item["values"]) for item in inputs["costFilters"]}
        return budget

    def _create_notifications(self, call: HandlerCall, account: str, name: str) -> None:
        for item in call.inputs.get("notifications", []):
            topics = item.get("subscriberSnsTopicArns", [])
            subscribers = [{"SubscriptionType": "SNS", "Address": topic} for topic in topics]
            call.aws.client("budgets").create_notification(
                AccountId=account,
                BudgetName=name,
                Notification=_notification_key({api_name(key): value for key, value in item.items()}),
                Subscribers=subscribers,
            )

    def _outputs(self, call: HandlerCall, name: str) -> dict[str, Any]:
        _, partition, _, _, account, _ = call.aws.client("sts").get_caller_identity()["Arn"].split(":", 5)
        return {"name": name, "accountId": account, "arn": f"arn:{partition}:budgets::{account}:budget/{name}"}


def _account(call: HandlerCall) -> str:
    return str(call.aws.client("sts").get_caller_identity()["Account"])


def _notifications(budgets: Any, account: str, name: str) -> list[dict[str, Any]]:
    """Return the notifications of a budget, each with the fields that identify it."""
    pages = budgets.get_paginator("describe_notifications_for_budget").paginate(AccountId=account, BudgetName=name)
    return [_notification_key(each) for page in pages for each in page["Notifications"]]


def _notification_key(notification: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that identify a notification within its budget."""
    keys = ("NotificationType", "ComparisonOperator", "Threshold", "ThresholdType")
    return {key: notification[key] for key in keys if key in notification}


HANDLERS = (MetricAlarm(), Budget())
