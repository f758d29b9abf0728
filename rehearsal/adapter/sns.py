"""SNS: topics, who may publish to them, and who hears of it."""

import json
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.handler import Call, Handler, Made, known
from rehearsal.adapter.tagging import retag_by

# What the provider puts in place of a policy that goes: SNS has no topic without one.
_OWNERS = [
    "SNS:GetTopicAttributes",
    "SNS:SetTopicAttributes",
    "SNS:AddPermission",
    "SNS:RemovePermission",
    "SNS:DeleteTopic",
    "SNS:Subscribe",
    "SNS:ListSubscriptionsByTopic",
    "SNS:Publish",
]


class Topic(Handler):
    type = "aws:sns/topic:Topic"
    keys = known("name", "kmsMasterKeyId", "tags")
    named = "name"
    replaces = frozenset(["name"])

    def create(self, call: Call) -> Made:
        name = self.name_of(call)
        attributes = call.only(kmsMasterKeyId="KmsMasterKeyId")
        made = call.aws.client("sns").create_topic(Name=name, Attributes=attributes, Tags=call.tags)["TopicArn"]
        return made, self._outputs(made)

    def update(self, call: Call) -> dict[str, Any]:
        sns = call.aws.client("sns")
        if call.changed("kmsMasterKeyId"):
            key = call.inputs.get("kmsMasterKeyId", "")
            sns.set_topic_attributes(TopicArn=call.id, AttributeName="KmsMasterKeyId", AttributeValue=key)
        retag_by(call, sns.tag_resource, sns.untag_resource, ResourceArn=call.id)
        return self._outputs(call.id)

    def delete(self, call: Call) -> None:
        call.aws.client("sns").delete_topic(TopicArn=call.id)

    def _outputs(self, arn: str) -> dict[str, Any]:
        *_, owner, name = arn.split(":")
        return {"name": name, "arn": arn, "owner": owner}


class TopicPolicy(Handler):
    type = "aws:sns/topicPolicy:TopicPolicy"
    keys = known("arn", "policy")
    replaces = frozenset(["arn"])

    def create(self, call: Call) -> Made:
        return call.inputs["arn"], self.update(call)

    def update(self, call: Call) -> dict[str, Any]:
        self._put(call, call.inputs["policy"])
        return {"owner": call.inputs["arn"].split(":")[4]}

    def delete(self, call: Call) -> None:
        owner = call.id.split(":")[4]
        statement = {
            "Sid": "__default_statement_ID",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": _OWNERS,
            "Resource": call.id,
            "Condition": {"StringEquals": {"AWS:SourceOwner": owner}},
        }
        self._put(call, json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}))

    def _put(self, call: Call, policy: str) -> None:
        call.aws.client("sns").set_topic_attributes(
            TopicArn=call.inputs["arn"], AttributeName="Policy", AttributeValue=policy
        )


class TopicSubscription(Handler):
    """Somebody who hears. Of e-mail only those who press the link in it: no wait for that."""

    type = "aws:sns/topicSubscription:TopicSubscription"
    keys = known("topic", "protocol", "endpoint")
    replaces = frozenset(keys)

    def create(self, call: Call) -> Made:
        sns = call.aws.client("sns")
        asked = call.only(topic="TopicArn", protocol="Protocol", endpoint="Endpoint")
        made = sns.subscribe(ReturnSubscriptionArn=True, **asked)["SubscriptionArn"]
        told = sns.get_subscription_attributes(SubscriptionArn=made)["Attributes"]
        return made, {
            "arn": made,
            "ownerId": told["Owner"],
            "pendingConfirmation": told["PendingConfirmation"] == "true",
            "confirmationWasAuthenticated": told.get("ConfirmationWasAuthenticated") == "true",
        }

    def delete(self, call: Call) -> None:
        """What nobody confirmed can't be taken back: it goes with its topic, or by itself."""
        try:
            call.aws.client("sns").unsubscribe(SubscriptionArn=call.id)
        except ClientError as error:
            if "pending confirmation" not in error.response["Error"]["Message"]:
                raise


HANDLERS = (Topic(), TopicPolicy(), TopicSubscription())
