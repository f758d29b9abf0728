"""SNS topics, their policies and subscriptions through their handlers."""

import json
from typing import Any

import boto3

from rehearsal.adapter.account import Adapter
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.made import Made

TOPIC, POLICY, SUBSCRIPTION = (
    "aws:sns/topic:Topic",
    "aws:sns/topicPolicy:TopicPolicy",
    "aws:sns/topicSubscription:TopicSubscription",
)


def attributes(topic: str) -> dict[str, Any]:
    return dict(boto3.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"])


def tags(topic: str) -> dict[str, str]:
    told = boto3.client("sns").list_tags_for_resource(ResourceArn=topic)["Tags"]
    return {tag["Key"]: tag["Value"] for tag in told}


def test_a_topic_is_made_changed_and_deleted(account: Adapter) -> None:
    topic = Made(account, TOPIC, kmsMasterKeyId="alias/aws/sns", tags={"a": "1", "b": "2"})
    assert topic.outputs == {"name": topic.id.rpartition(":")[2], "arn": topic.id, "owner": ACCOUNT}
    assert topic.outputs["name"].startswith("mine-")
    assert (attributes(topic.id)["KmsMasterKeyId"], tags(topic.id)) == ("alias/aws/sns", {"a": "1", "b": "2"})
    topic.update(kmsMasterKeyId="alias/own", tags={"b": "3"})
    assert (attributes(topic.id)["KmsMasterKeyId"], tags(topic.id)) == ("alias/own", {"b": "3"})
    topic.update()
    assert ("KmsMasterKeyId" in attributes(topic.id), tags(topic.id)) == (False, {})
    topic.delete()
    assert topic.id not in [each["TopicArn"] for each in boto3.client("sns").list_topics()["Topics"]]
    topic.delete()


def test_a_topics_policy_is_put_changed_and_becomes_the_first_again(account: Adapter) -> None:
    topic = Made(account, TOPIC).id
    first = json.loads(attributes(topic)["Policy"])

    def policy(service: str) -> str:
        statement = {
            "Effect": "Allow",
            "Action": "sns:Publish",
            "Principal": {"Service": service},
            "Resource": topic,
        }
        return json.dumps({"Version": "2012-10-17", "Statement": [statement]})

    made = Made(account, POLICY, arn=topic, policy=policy("budgets.amazonaws.com"))
    assert (made.id, made.outputs) == (topic, {"owner": ACCOUNT})
    assert json.loads(attributes(topic)["Policy"]) == json.loads(policy("budgets.amazonaws.com"))
    made.update(arn=topic, policy=policy("cloudwatch.amazonaws.com"))
    assert json.loads(attributes(topic)["Policy"]) == json.loads(policy("cloudwatch.amazonaws.com"))
    made.delete()
    (told,), (wanted,) = json.loads(attributes(topic)["Policy"])["Statement"], first["Statement"]
    assert told["Condition"] == wanted["Condition"]
    assert (told["Principal"], told["Resource"]) == (wanted["Principal"], topic)


def test_an_address_stays_unconfirmed_and_goes_with_its_topic(account: Adapter) -> None:
    topic = Made(account, TOPIC)
    made = Made(account, SUBSCRIPTION, topic=topic.id, protocol="email", endpoint="me@example.org")
    assert made.outputs == {
        "arn": made.id,
        "ownerId": ACCOUNT,
        "pendingConfirmation": True,
        "confirmationWasAuthenticated": False,
    }
    made.delete()  # what nobody confirmed SNS does not let go
    told = boto3.client("sns").list_subscriptions_by_topic(TopicArn=topic.id)["Subscriptions"]
    assert [each["Endpoint"] for each in told] == ["me@example.org"]
    topic.delete()
    assert made.id not in str(boto3.client("sns").list_subscriptions())


def test_a_subscription_that_asks_nobody_is_confirmed_and_goes(account: Adapter) -> None:
    topic = Made(account, TOPIC).id
    queue = f"arn:aws:sqs:us-east-1:{ACCOUNT}:queue"
    made = Made(account, SUBSCRIPTION, topic=topic, protocol="sqs", endpoint=queue)
    assert made.outputs["pendingConfirmation"] is False
    made.delete()
    assert boto3.client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"] == []
