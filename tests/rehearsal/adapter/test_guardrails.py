"""Handlers of CloudWatch alarms and AWS budgets."""

from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.managed_resource import ManagedResource

ALARM, BUDGET = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:budgets/budget:Budget"


def alarm_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        "namespace": "AWS/EC2",
        "metricName": "StatusCheckFailed",
        "dimensions": {"InstanceId": "i-1"},
        "statistic": "Maximum",
        "period": 60,
        "evaluationPeriods": 2,
        "threshold": 1,
        "comparisonOperator": "GreaterThanOrEqualToThreshold",
        "treatMissingData": "notBreaching",
        "alarmDescription": "the head fails its status checks",
        "alarmActions": [f"arn:aws:sns:us-east-1:{ACCOUNT}:t"],
        "okActions": [f"arn:aws:sns:us-east-1:{ACCOUNT}:u"],
        "tags": {"a": "1", "b": "2"},
    }
    return {**inputs, **changes}


def describe_alarm(name: str) -> dict[str, Any]:
    (result,) = boto3.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
    return dict(result)


def test_alarm_is_created_with_all_inputs(account: EmulatedAccount) -> None:
    created = ManagedResource(account, ALARM, **alarm_inputs())
    assert created.outputs == {"name": created.id, "arn": f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{created.id}"}
    described = describe_alarm(created.id)
    assert described["Dimensions"] == [{"Name": "InstanceId", "Value": "i-1"}]
    assert [described[key] for key in ("Namespace", "MetricName", "Statistic", "Period", "EvaluationPeriods")] == [
        "AWS/EC2",
        "StatusCheckFailed",
        "Maximum",
        60,
        2,
    ]
    assert (described["Threshold"], described["ComparisonOperator"], described["TreatMissingData"]) == (
        1.0,
        "GreaterThanOrEqualToThreshold",
        "notBreaching",
    )
    assert [described["AlarmActions"][0][-1], described["OKActions"][0][-1]] == ["t", "u"]
    assert described["AlarmDescription"] == "the head fails its status checks"


def test_alarm_is_updated_in_place_and_keeps_the_alarm_state(account: EmulatedAccount) -> None:
    cloudwatch, created = boto3.client("cloudwatch"), ManagedResource(account, ALARM, **alarm_inputs(alarmActions=[]))
    cloudwatch.set_alarm_state(AlarmName=created.id, StateValue="ALARM", StateReason="test")
    created.update(**alarm_inputs(threshold=3, dimensions={"InstanceId": "i-2"}, okActions=[], tags={"b": "3"}))
    described = describe_alarm(created.id)
    assert (described["Threshold"], described["Dimensions"][0]["Value"], described["OKActions"]) == (3.0, "i-2", [])
    assert described["StateValue"] == "ALARM"
    tags = cloudwatch.list_tags_for_resource(ResourceARN=created.outputs["arn"])["Tags"]
    assert tags == [{"Key": "b", "Value": "3"}]
    created.delete()
    assert cloudwatch.describe_alarms(AlarmNames=[created.id])["MetricAlarms"] == []


def notification(threshold: float, **changes: Any) -> dict[str, Any]:
    inputs = {
        "comparisonOperator": "GREATER_THAN",
        "threshold": threshold,
        "thresholdType": "PERCENTAGE",
        "notificationType": "ACTUAL",
        "subscriberSnsTopicArns": [f"arn:aws:sns:us-east-1:{ACCOUNT}:t"],
    }
    return {**inputs, **changes}


def budget_inputs(**changes: Any) -> dict[str, Any]:
    inputs = {
        "budgetType": "COST",
        "limitAmount": "100",
        "limitUnit": "USD",
        "timeUnit": "MONTHLY",
        "costFilters": [{"name": "TagKeyValue", "values": ["user:trainyard:stack$mine"]}],
        "notifications": [notification(80), notification(100, notificationType="FORECASTED")],
        "tags": {"a": "1", "b": "2"},
    }
    return {**inputs, **changes}


def describe_budget(name: str) -> dict[str, Any]:
    return dict(boto3.client("budgets").describe_budget(AccountId=ACCOUNT, BudgetName=name)["Budget"])


def describe_notifications(name: str) -> list[tuple[str, float, list[str]]]:
    """Return the type, the threshold and the subscriber types of each notification."""
    budgets, budget = boto3.client("budgets"), {"AccountId": ACCOUNT, "BudgetName": name}
    result = budgets.describe_notifications_for_budget(**budget)["Notifications"]
    return [
        (
            each["NotificationType"],
            each["Threshold"],
            [
                subscriber["SubscriptionType"]
                for subscriber in budgets.describe_subscribers_for_notification(**budget, Notification=each)[
                    "Subscribers"
                ]
            ],
        )
        for each in result
    ]


def test_budget_is_created_with_all_inputs(account: EmulatedAccount) -> None:
    created = ManagedResource(account, BUDGET, **budget_inputs())
    name = created.outputs["name"]
    assert created.id == f"{ACCOUNT}:{name}"
    assert created.outputs["arn"] == f"arn:aws:budgets::{ACCOUNT}:budget/{name}"
    described = describe_budget(name)
    assert described["BudgetLimit"] == {"Amount": "100", "Unit": "USD"}
    assert described["CostFilters"] == {"TagKeyValue": ["user:trainyard:stack$mine"]}
    assert describe_notifications(name) == [("ACTUAL", 80.0, ["SNS"]), ("FORECASTED", 100.0, ["SNS"])]


def test_limit_of_a_budget_is_updated_in_place(account: EmulatedAccount) -> None:
    created = ManagedResource(account, BUDGET, **budget_inputs())
    name, started = created.outputs["name"], describe_budget(created.outputs["name"])["TimePeriod"]["Start"]
    created.update(**budget_inputs(limitAmount="250"))
    described = describe_budget(name)
    assert (described["BudgetLimit"]["Amount"], described["TimePeriod"]["Start"]) == ("250", started)
    assert len(describe_notifications(name)) == 2


def test_notifications_and_tags_of_a_budget_are_updated_in_place(account: EmulatedAccount) -> None:
    budgets, created = boto3.client("budgets"), ManagedResource(account, BUDGET, **budget_inputs())
    created.update(**budget_inputs(notifications=[notification(50)], tags={"b": "3"}))
    assert describe_notifications(created.outputs["name"]) == [("ACTUAL", 50.0, ["SNS"])]
    tags = budgets.list_tags_for_resource(ResourceARN=created.outputs["arn"])["ResourceTags"]
    assert tags == [{"Key": "b", "Value": "3"}]


def test_deleted_budget_can_be_deleted_again(account: EmulatedAccount) -> None:
    budgets, created = boto3.client("budgets"), ManagedResource(account, BUDGET, **budget_inputs())
    created.delete()
    with pytest.raises(budgets.exceptions.NotFoundException):
        describe_budget(created.outputs["name"])
    created.delete()
