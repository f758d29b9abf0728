"""Alarms that change their state, and the topics that hear of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.test_rights import Statement, allow

CLOUDWATCH = {"Service": "cloudwatch.amazonaws.com"}
ROOT = allow("kms:*", "*", Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
USE = ["kms:Decrypt", "kms:GenerateDataKey*"]
Topic = Callable[..., str]


def document(*statements: Statement) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@pytest.fixture
def topic(client: Client, name: str) -> Topic:
    """Makes a topic, under a key with these statements where there are any."""

    def make(*key: Statement, **attributes: str) -> str:
        if key:
            attributes["KmsMasterKeyId"] = client("kms").create_key(Policy=document(*key))["KeyMetadata"]["KeyId"]
        return str(client("sns").create_topic(Name=name, Attributes=attributes)["TopicArn"])

    return make


def heard(client: Client, name: str, topic: str, *states: str) -> list[str]:
    """What an alarm with this topic says of its actions once it went through the states, the newest first."""
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


def test_each_new_state_is_told_once(client: Client, topic: Topic, name: str) -> None:
    assert heard(client, name, topic(), "ALARM", "ALARM", "OK", "INSUFFICIENT_DATA") == [DONE, DONE]


@pytest.mark.parametrize(
    ("key", "told"),
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
def test_a_topic_under_a_key_is_told_where_the_key_lets_cloudwatch(
    client: Client, topic: Topic, name: str, key: list[Statement], told: str
) -> None:
    (found,) = heard(client, name, topic(*key), "ALARM")
    assert found.startswith(told)


def test_awss_own_key_of_sns_lets_no_service(client: Client, topic: Topic, name: str) -> None:
    (told,) = heard(client, name, topic(KmsMasterKeyId="alias/aws/sns"), "ALARM")
    assert "encryption key" in told


@pytest.mark.parametrize(
    ("principal", "told"),
    [
        (CLOUDWATCH, DONE),
        ({"Service": "budgets.amazonaws.com"}, f"{FAILED} does not have authorization to publish to the SNS topic."),
    ],
)
def test_a_topics_own_policy_says_who_publishes(
    client: Client, topic: Topic, name: str, principal: dict[str, Any], told: str
) -> None:
    made = topic()
    policy = document(allow("sns:Publish", made, Principal=principal))
    client("sns").set_topic_attributes(TopicArn=made, AttributeName="Policy", AttributeValue=policy)
    assert heard(client, name, made, "ALARM") == [told]


def test_a_topic_that_is_gone_is_told(client: Client, topic: Topic, name: str) -> None:
    made = topic()
    client("sns").delete_topic(TopicArn=made)
    assert heard(client, name, made, "ALARM") == [f"{FAILED} Topic does not exist."]
