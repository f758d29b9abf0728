"""Handlers of SNS topics, topic policies and subscriptions."""

import json
from typing import Any

import boto3

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.managed_resource import ManagedResource

TOPIC, POLICY, SUBSCRIPTION = (
    "aws:sns/topic:Topic",
    "aws:sns/topicPolicy:TopicPolicy",
    "aws:sns/topicSubscription:TopicSubscription",
)


def attributes(topic: str) -> dict[str, Any]:
    return dict(boto3.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"])


def tags(topic: str) -> dict[str, str]:
    described = boto3.client("sns").list_tags_for_resource(ResourceArn=topic)["Tags"]
    return {tag["Key"]: tag["Value"] for tag in described}


def test_topic_is_created_updated_and_deleted(account: EmulatedAccount) -> None:
    topic = ManagedResource(account, TOPIC, kmsMasterKeyId="alias/aws/sns", tags={"a": "1", "b": "2"})
    assert topic.outputs == {"name": topic.id.rpartition(":")[2], "arn": topic.id, "owner": ACCOUNT}
    assert topic.outputs["name"].startswith("example-")
    assert (attributes(topic.id)["KmsMasterKeyId"], tags(topic.id)) == ("alias/aws/sns", {"a": "1", "b": "2"})
    topic.update(kmsMasterKeyId="alias/other", tags={"b": "3"})
    assert (attributes(topic.id)["KmsMasterKeyId"], tags(topic.id)) == ("alias/other", {"b": "3"})
    topic.update()
    assert ("KmsMasterKeyId" in attributes(topic.id), tags(topic.id)) == (False, {})
    topic.delete()
    assert topic.id not in [each["TopicArn"] for each in boto3.client("sns").list_topics()["Topics"]]
    topic.delete()


def test_deleted_topic_policy_is_replaced_by_the_default(account: EmulatedAccount) -> None:
    topic = ManagedResource(account, TOPIC).id
    default = json.loads(attributes(topic)["Policy"])

    def policy(service: str) -> str:
        statement = {
            "Effect": "Allow",
            "Action": "sns:Publish",
            "Principal": {"Service": service},
            "Resource": topic,
        }
        return json.dumps({"Version": "2012-10-17", "Statement": [statement]})

    created = ManagedResource(account, POLICY, arn=topic, policy=policy("budgets.amazonaws.com"))
    assert (created.id, created.outputs) == (topic, {"owner": ACCOUNT})
    assert json.loads(attributes(topic)["Policy"]) == json.loads(policy("budgets.amazonaws.com"))
    created.update(arn=topic, policy=policy("cloudwatch.amazonaws.com"))
    assert json.loads(attributes(topic)["Policy"]) == json.loads(policy("cloudwatch.amazonaws.com"))
    created.delete()
    (described,), (expected,) = json.loads(attributes(topic)["Policy"])["Statement"], default["Statement"]
    assert described["Condition"] == expected["Condition"]
    assert (described["Principal"], described["Resource"]) == (expected["Principal"], topic)


def test_unconfirmed_subscription_is_deleted_with_the_topic(account: EmulatedAccount) -> None:
    topic = ManagedResource(account, TOPIC)
    created = ManagedResource(account, SUBSCRIPTION, topic=topic.id, protocol="email", endpoint="me@example.org")
    assert created.outputs == {
        "arn": created.id,
        "ownerId": ACCOUNT,
        "pendingConfirmation": True,
        "confirmationWasAuthenticated": False,
    }
    created.delete()  # SNS cannot delete an unconfirmed subscription
    described = boto3.client("sns").list_subscriptions_by_topic(TopicArn=topic.id)["Subscriptions"]
    assert [each["Endpoint"] for each in described] == ["me@example.org"]
    topic.delete()
    assert created.id not in str(boto3.client("sns").list_subscriptions())


def test_subscription_without_confirmation_is_deleted(account: EmulatedAccount) -> None:
    topic = ManagedResource(account, TOPIC).id
    queue = f"arn:aws:sqs:us-east-1:{ACCOUNT}:queue"
    created = ManagedResource(account, SUBSCRIPTION, topic=topic, protocol="sqs", endpoint=queue)
    assert created.outputs["pendingConfirmation"] is False
    created.delete()
    assert boto3.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
