"""Alarm actions: state changes of alarms and the SNS topics that receive them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.iam.test_authorization import Statement, allow

CLOUDWATCH = {"Service": "cloudwatch.amazonaws.com"}
ROOT = allow("kms:*", "*", Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
USE = ["kms:Decrypt", "kms:GenerateDataKey*"]
Topic = Callable[..., str]


def document(*statements: Statement) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@pytest.fixture
def topic(client: Client, name: str) -> Topic:
    """Return a function that creates a topic, encrypted under a key with these statements if there are any."""

    def make(*key: Statement, **attributes: str) -> str:
        if key:
            attributes["KmsMasterKeyId"] = client("kms").create_key(Policy=document(*key))["KeyMetadata"]["KeyId"]
        return str(client("sns").create_topic(Name=name, Attributes=attributes)["TopicArn"])

    return make


def action_results(client: Client, name: str, topic: str, *states: str) -> list[str]:
    """Return the history of an alarm's actions after the states, newest first."""
    cloudwatch = client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName=name,
        Namespace="AWS/EC2",
        MetricName="StatusCheckFailed",
        Statistic="Maximum",
        Period=60,
        EvaluationPeriods=2,
        Threshold=1,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        AlarmActions=[topic],
        OKActions=[topic],
    )
    for state in states:
        cloudwatch.set_alarm_state(AlarmName=name, StateValue=state, StateReason="tried")
    items = cloudwatch.describe_alarm_history(AlarmName=name)["AlarmHistoryItems"]
    return [item["HistorySummary"].replace(topic, "TOPIC") for item in items]


DONE = "Successfully executed action TOPIC"
FAILED = "Failed to execute action TOPIC. Received error: CloudWatch Alarms"


def test_each_state_change_is_published_once(client: Client, topic: Topic, name: str) -> None:
    assert action_results(client, name, topic(), "ALARM", "ALARM", "OK", "INSUFFICIENT_DATA") == [DONE, DONE]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ([ROOT], f"{FAILED} does not have authorization to access the SNS topic encryption key."),
        ([ROOT, allow(USE, "*", Principal=CLOUDWATCH)], DONE),
        ([ROOT, allow("kms:Decrypt", "*", Principal=CLOUDWATCH)], f"{FAILED} does not have authorization to access"),
        ([ROOT, allow(USE, "*", Principal={"Service": "budgets.amazonaws.com"})], f"{FAILED} does not have"),
        (
            [
                ROOT,
                allow(USE, "*", Principal=CLOUDWATCH, Condition={"StringEquals": {"aws:SourceAccount": ACCOUNT}}),
            ],
            DONE,
        ),
        (
            [
                ROOT,
                allow(
                    USE,
                    "*",
                    Principal=CLOUDWATCH,
                    Condition={"ArnLike": {"aws:SourceArn": f"arn:aws:cloudwatch:us-east-1:{ACCOUNT}:alarm:other-*"}},
                ),
            ],
            f"{FAILED} does not have",
        ),
    ],
)
def test_encrypted_topic_needs_a_key_that_allows_cloudwatch(
    client: Client, topic: Topic, name: str, key: list[Statement], expected: str
) -> None:
    (result,) = action_results(client, name, topic(*key), "ALARM")
    assert result.startswith(expected)


def test_aws_managed_sns_key_allows_no_service(client: Client, topic: Topic, name: str) -> None:
    (expected,) = action_results(client, name, topic(KmsMasterKeyId="alias/aws/sns"), "ALARM")
    assert "encryption key" in expected


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        (CLOUDWATCH, DONE),
        ({"Service": "budgets.amazonaws.com"}, f"{FAILED} does not have authorization to publish to the SNS topic."),
    ],
)
def test_topic_policy_controls_publishing(
    client: Client, topic: Topic, name: str, principal: dict[str, Any], expected: str
) -> None:
    created = topic()
    policy = document(allow("sns:Publish", created, Principal=principal))
    client("sns").set_topic_attributes(TopicArn=created, AttributeName="Policy", AttributeValue=policy)
    assert action_results(client, name, created, "ALARM") == [expected]


def test_deleted_topic_is_reported_in_the_history(client: Client, topic: Topic, name: str) -> None:
    created = topic()
    client("sns").delete_topic(TopicArn=created)
    assert action_results(client, name, created, "ALARM") == [f"{FAILED} Topic does not exist."]
