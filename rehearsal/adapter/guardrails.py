"""What raises the alarm: CloudWatch alarms, and budgets."""

from typing import Any

from rehearsal.adapter.handler import Call, Handler, Made, api_case, known
from rehearsal.adapter.tagging import retag_by, tag_changes


class MetricAlarm(Handler):
    type = "aws:cloudwatch/metricAlarm:MetricAlarm"
    keys = known(
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
    named = "name"
    replaces = frozenset(["name"])

    def create(self, call: Call) -> Made:
        name = self.name_of(call)
        self._put(call, name, Tags=call.tags)
        return name, self._outputs(call, name)

    def update(self, call: Call) -> dict[str, Any]:
        """One Put replaces all but the tags, which it ignores of an alarm that is there."""
        cloudwatch = call.aws.client("cloudwatch")
        self._put(call, call.id)
        outputs = self._outputs(call, call.id)
        retag_by(call, cloudwatch.tag_resource, cloudwatch.untag_resource, ResourceARN=outputs["arn"])
        return outputs

    def delete(self, call: Call) -> None:
        call.aws.client("cloudwatch").delete_alarms(AlarmNames=[call.id])

    def _put(self, call: Call, name: str, **more: Any) -> None:
        given = {
            "AlarmActions" if key == "alarmActions" else "OKActions" if key == "okActions" else api_case(key): value
            for key, value in call.inputs.items()
            if key not in ("name", "tags", "dimensions")
        }
        dimensions = [{"Name": key, "Value": value} for key, value in sorted(call.inputs.get("dimensions", {}).items())]
        call.aws.client("cloudwatch").put_metric_alarm(AlarmName=name, Dimensions=dimensions, **given, **more)

    def _outputs(self, call: Call, name: str) -> dict[str, Any]:
        (found,) = call.aws.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
        return {"name": name, "arn": found["AlarmArn"]}


class Budget(Handler):
    """The provider puts a budget first and then its notifications, one by one; so do we."""

    type = "aws:budgets/budget:Budget"
    keys = known(
        "name",
        "budgetType",
        "limitAmount",
        "limitUnit",
        "timeUnit",
        "tags",
        costFilters=known("name", "values"),
        costTypes=known(
            "includeCredit",
            "includeDiscount",
            "includeOtherSubscription",
            "includeRecurring",
            "includeRefund",
            "includeSubscription",
            "includeSupport",
            "includeTax",
            "includeUpfront",
            "useAmortized",
            "useBlended",
        ),
        notifications=known(
            "comparisonOperator",
            "threshold",
            "thresholdType",
            "notificationType",
            "subscriberEmailAddresses",
            "subscriberSnsTopicArns",
        ),
    )
    named = "name"
    replaces = frozenset(["name"])

    def create(self, call: Call) -> Made:
        budgets, account = call.aws.client("budgets"), _account(call)
        name = self.name_of(call)
        budgets.create_budget(AccountId=account, Budget=self._budget(call, name), ResourceTags=call.tags)
        self._notify(call, account, name)
        return f"{account}:{name}", self._outputs(call, name)

    def update(self, call: Call) -> dict[str, Any]:
        budgets = call.aws.client("budgets")
        account, _, name = call.id.partition(":")
        budgets.update_budget(AccountId=account, NewBudget=self._budget(call, name))
        if call.changed("notifications"):
            pages = budgets.get_paginator("describe_notifications_for_budget")
            for page in pages.paginate(AccountId=account, BudgetName=name):
                for old in page["Notifications"]:
                    budgets.delete_notification(AccountId=account, BudgetName=name, Notification=_plain(old))
            self._notify(call, account, name)
        outputs = self._outputs(call, name)
        put, gone = tag_changes(call)
        if put:
            budgets.tag_resource(ResourceARN=outputs["arn"], ResourceTags=put)
        if gone:
            budgets.untag_resource(ResourceARN=outputs["arn"], ResourceTagKeys=gone)
        return outputs

    def delete(self, call: Call) -> None:
        account, _, name = call.id.partition(":")
        call.aws.client("budgets").delete_budget(AccountId=account, BudgetName=name)

    def _budget(self, call: Call, name: str) -> dict[str, Any]:
        given = call.inputs
        budget: dict[str, Any] = {
            "BudgetName": name,
            "BudgetType": given["budgetType"],
            "TimeUnit": given["timeUnit"],
            "BudgetLimit": {"Amount": str(given["limitAmount"]), "Unit": given["limitUnit"]},
        }
        if "costFilters" in given:
            budget["CostFilters"] = {item["name"]: list(item["values"]) for item in given["costFilters"]}
        if "costTypes" in given:
            budget["CostTypes"] = {api_case(key): value for key, value in given["costTypes"].items()}
        return budget

    def _notify(self, call: Call, account: str, name: str) -> None:
        for item in call.inputs.get("notifications", []):
            subscribers = [
                {"SubscriptionType": kind, "Address": address}
                for kind, key in (("EMAIL", "subscriberEmailAddresses"), ("SNS", "subscriberSnsTopicArns"))
                for address in item.get(key, [])
            ]
            call.aws.client("budgets").create_notification(
                AccountId=account,
                BudgetName=name,
                Notification=_plain({api_case(key): value for key, value in item.items()}),
                Subscribers=subscribers,
            )

    def _outputs(self, call: Call, name: str) -> dict[str, Any]:
        _, partition, _, _, account, _ = call.aws.client("sts").get_caller_identity()["Arn"].split(":", 5)
        return {"name": name, "accountId": account, "arn": f"arn:{partition}:budgets::{account}:budget/{name}"}


def _account(call: Call) -> str:
    return str(call.aws.client("sts").get_caller_identity()["Account"])


def _plain(notification: dict[str, Any]) -> dict[str, Any]:
    """What tells one notification of a budget from the others."""
    keys = ("NotificationType", "ComparisonOperator", "Threshold", "ThresholdType")
    return {key: notification[key] for key in keys if key in notification}


HANDLERS = (MetricAlarm(), Budget())
