"""Alarms and budgets through their handlers."""

from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.made import Made

ALARM, BUDGET = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:budgets/budget:Budget"


def alarm_inputs(**changes: Any) -> dict[str, Any]:
    given = {
        "namespace": "AWS/EC2",
        "metricName": "StatusCheckFailed",
        "dimensions": {"InstanceId": "i-1"},
        "statistic": "Maximum",
        "period": 60,
        "evaluationPeriods": 2,
        "threshold": 1,
        "comparisonOperator": "GreaterThanOrEqualToThreshold",
        "treatMissingData": "notBreaching",
        "alarmDescription": "the head is ill",
        "alarmActions": [f"arn:aws:sns:us-east-1:{ACCOUNT}:t"],
        "okActions": [f"arn:aws:sns:us-east-1:{ACCOUNT}:u"],
        "tags": {"a": "1", "b": "2"},
    }
    return {**given, **changes}


def alarm_told(name: str) -> dict[str, Any]:
    (found,) = boto3.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
    return dict(found)


def test_an_alarm_is_made_as_asked(account: Adapter) -> None:
    made = Made(account, ALARM, **alarm_inputs())
    assert made.outputs == {"name": made.id, "arn": f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:{made.id}"}
    told = alarm_told(made.id)
    assert told["Dimensions"] == [{"Name": "InstanceId", "Value": "i-1"}]
    assert [told[key] for key in ("Namespace", "MetricName", "Statistic", "Period", "EvaluationPeriods")] == [
        "AWS/EC2",
        "StatusCheckFailed",
        "Maximum",
        60,
        2,
    ]
    assert (told["Threshold"], told["ComparisonOperator"], told["TreatMissingData"]) == (
        1.0,
        "GreaterThanOrEqualToThreshold",
        "notBreaching",
    )
    assert [told["AlarmActions"][0][-1], told["OKActions"][0][-1]] == ["t", "u"]
    assert told["AlarmDescription"] == "the head is ill"


def test_an_alarm_is_changed_in_place_and_keeps_its_state(account: Adapter) -> None:
    cloudwatch, made = boto3.client("cloudwatch"), Made(account, ALARM, **alarm_inputs(alarmActions=[]))
    cloudwatch.set_alarm_state(AlarmName=made.id, StateValue="ALARM", StateReason="ill")
    made.update(**alarm_inputs(threshold=3, dimensions={"InstanceId": "i-2"}, okActions=[], tags={"b": "3"}))
    told = alarm_told(made.id)
    assert (told["Threshold"], told["Dimensions"][0]["Value"], told["OKActions"]) == (3.0, "i-2", [])
    assert told["StateValue"] == "ALARM"
    tags = cloudwatch.list_tags_for_resource(ResourceARN=made.outputs["arn"])["Tags"]
    assert tags == [{"Key": "b", "Value": "3"}]
    made.delete()
    assert cloudwatch.describe_alarms(AlarmNames=[made.id])["MetricAlarms"] == []


def notification(threshold: float, **changes: Any) -> dict[str, Any]:
    given = {
        "comparisonOperator": "GREATER_THAN",
        "threshold": threshold,
        "thresholdType": "PERCENTAGE",
        "notificationType": "ACTUAL",
        "subscriberEmailAddresses": ["me@example.org"],
        "subscriberSnsTopicArns": [f"arn:aws:sns:us-east-1:{ACCOUNT}:t"],
    }
    return {**given, **changes}


def budget_inputs(**changes: Any) -> dict[str, Any]:
    given = {
        "budgetType": "COST",
        "limitAmount": "100",
        "limitUnit": "USD",
        "timeUnit": "MONTHLY",
        "costFilters": [{"name": "TagKeyValue", "values": ["user:trainyard:stack$mine"]}],
        "notifications": [notification(80), notification(100, notificationType="FORECASTED")],
        "tags": {"a": "1", "b": "2"},
    }
    return {**given, **changes}


def budget_told(name: str) -> dict[str, Any]:
    return dict(boto3.client("budgets").describe_budget(AccountId=ACCOUNT, BudgetName=name)["Budget"])


def notified(name: str) -> list[tuple[str, float, list[str]]]:
    """Each notification's type and threshold, and whom it tells."""
    budgets, which = boto3.client("budgets"), {"AccountId": ACCOUNT, "BudgetName": name}
    found = budgets.describe_notifications_for_budget(**which)["Notifications"]
    return [
        (
            each["NotificationType"],
            each["Threshold"],
            [
                subscriber["SubscriptionType"]
                for subscriber in budgets.describe_subscribers_for_notification(**which, Notification=each)[
                    "Subscribers"
                ]
            ],
        )
        for each in found
    ]


def test_a_budget_is_made_as_asked(account: Adapter) -> None:
    made = Made(account, BUDGET, **budget_inputs(costTypes={"includeCredit": False, "useAmortized": True}))
    name = made.outputs["name"]
    assert made.id == f"{ACCOUNT}:{name}"
    assert made.outputs["arn"] == f"arn:aws:budgets::{ACCOUNT}:budget/{name}"
    told = budget_told(name)
    assert told["BudgetLimit"] == {"Amount": "100", "Unit": "USD"}
    assert told["CostFilters"] == {"TagKeyValue": ["user:trainyard:stack$mine"]}
    assert told["CostTypes"] == {"IncludeCredit": False, "UseAmortized": True}
    assert notified(name) == [("ACTUAL", 80.0, ["EMAIL", "SNS"]), ("FORECASTED", 100.0, ["EMAIL", "SNS"])]


def test_a_budgets_limit_is_changed_in_place(account: Adapter) -> None:
    made = Made(account, BUDGET, **budget_inputs())
    name, started = made.outputs["name"], budget_told(made.outputs["name"])["TimePeriod"]["Start"]
    made.update(**budget_inputs(limitAmount="250"))
    told = budget_told(name)
    assert (told["BudgetLimit"]["Amount"], told["TimePeriod"]["Start"]) == ("250", started)
    assert len(notified(name)) == 2


def test_a_budgets_notifications_and_tags_are_changed_in_place(account: Adapter) -> None:
    budgets, made = boto3.client("budgets"), Made(account, BUDGET, **budget_inputs())
    made.update(**budget_inputs(notifications=[notification(50, subscriberSnsTopicArns=[])], tags={"b": "3"}))
    assert notified(made.outputs["name"]) == [("ACTUAL", 50.0, ["EMAIL"])]
    tags = budgets.list_tags_for_resource(ResourceARN=made.outputs["arn"])["ResourceTags"]
    assert tags == [{"Key": "b", "Value": "3"}]


def test_a_deleted_budget_is_gone_and_may_be_deleted_again(account: Adapter) -> None:
    budgets, made = boto3.client("budgets"), Made(account, BUDGET, **budget_inputs())
    made.delete()
    with pytest.raises(budgets.exceptions.NotFoundException):
        budget_told(made.outputs["name"])
    made.delete()
