"""SNS topics, topic policies and subscriptions."""

import json
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys
from rehearsal.adapter.refresh import select, tag_dict
from rehearsal.adapter.tagging import update_tags

# Actions of SNS's default policy, which replaces a deleted policy: every topic has a policy.
_DEFAULT_POLICY_ACTIONS = [
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
    """An SNS topic."""

    type = "aws:sns/topic:Topic"
    keys = input_keys("name", "kmsMasterKeyId", "tags")
    name_input = "name"
    replace_on_changes = frozenset(["name"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the topic."""
        name = self.physical_name(call)
        attributes = call.api_arguments(kmsMasterKeyId="KmsMasterKeyId")
        arn = call.aws.client("sns").create_topic(Name=name, Attributes=attributes, Tags=call.tags)["TopicArn"]
        return arn, self._outputs(arn)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the topic."""
        sns = call.aws.client("sns")
        if call.has_changed("kmsMasterKeyId"):
            key = call.inputs.get("kmsMasterKeyId", "")
            sns.set_topic_attributes(TopicArn=call.id, AttributeName="KmsMasterKeyId", AttributeValue=key)
        update_tags(call, sns.tag_resource, sns.untag_resource, ResourceArn=call.id)
        return self._outputs(call.id)

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        sns = call.aws.client("sns")
        attributes = sns.get_topic_attributes(TopicArn=call.id)["Attributes"]
        tags = tag_dict(sns.list_tags_for_resource(ResourceArn=call.id)["Tags"])
        inputs = {"name": call.id.split(":")[-1], "kmsMasterKeyId": attributes.get("KmsMasterKeyId", ""), "tags": tags}
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Delete the topic."""
        call.aws.client("sns").delete_topic(TopicArn=call.id)

    def _outputs(self, arn: str) -> dict[str, Any]:
        *_, owner, name = arn.split(":")
        return {"name": name, "arn": arn, "owner": owner}


class TopicPolicy(Handler):
    """The access policy of an SNS topic. Deletion restores SNS's default policy."""

    type = "aws:sns/topicPolicy:TopicPolicy"
    keys = input_keys("arn", "policy")
    replace_on_changes = frozenset(["arn"])

    def create(self, call: HandlerCall) -> CreateResult:
        """Set the topic's policy."""
        return call.inputs["arn"], self.update(call)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Set the topic's policy."""
        self._put(call, call.inputs["policy"])
        return {"owner": call.inputs["arn"].split(":")[4]}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        attributes = call.aws.client("sns").get_topic_attributes(TopicArn=call.id)["Attributes"]
        return ReadResult(inputs={"arn": call.id, "policy": attributes["Policy"]})

    def delete(self, call: HandlerCall) -> None:
        """Restore SNS's default policy."""
        owner = call.id.split(":")[4]
        statement = {
            "Sid": "__default_statement_ID",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": _DEFAULT_POLICY_ACTIONS,
            "Resource": call.id,
            "Condition": {"StringEquals": {"AWS:SourceOwner": owner}},
        }
        self._put(call, json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}))

    def _put(self, call: HandlerCall, policy: str) -> None:
        call.aws.client("sns").set_topic_attributes(
            TopicArn=call.inputs["arn"], AttributeName="Policy", AttributeValue=policy
        )


class TopicSubscription(Handler):
    """An SNS subscription. An email address must confirm it by a link; creation does not wait for that."""

    type = "aws:sns/topicSubscription:TopicSubscription"
    keys = input_keys("topic", "protocol", "endpoint")
    replace_on_changes = frozenset(keys)

    def create(self, call: HandlerCall) -> CreateResult:
        """Subscribe the endpoint to the topic."""
        sns = call.aws.client("sns")
        arguments = call.api_arguments(topic="TopicArn", protocol="Protocol", endpoint="Endpoint")
        arn = sns.subscribe(ReturnSubscriptionArn=True, **arguments)["SubscriptionArn"]
        attributes = sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
        return arn, self._outputs(arn, attributes)

    def _outputs(self, arn: str, attributes: dict[str, str]) -> dict[str, Any]:
        return {
            "arn": arn,
            "ownerId": attributes["Owner"],
            "pendingConfirmation": attributes["PendingConfirmation"] == "true",
            "confirmationWasAuthenticated": attributes.get("ConfirmationWasAuthenticated") == "true",
        }

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        attributes = call.aws.client("sns").get_subscription_attributes(SubscriptionArn=call.id)["Attributes"]
        inputs = select(attributes, topic="TopicArn", protocol="Protocol", endpoint="Endpoint")
        return ReadResult(inputs=inputs, outputs=self._outputs(call.id, attributes))

    def delete(self, call: HandlerCall) -> None:
        """Delete a confirmed subscription. SNS deletes an unconfirmed one itself, at the latest with its topic."""
        try:
            call.aws.client("sns").unsubscribe(SubscriptionArn=call.id)
        except ClientError as error:
            if "pending confirmation" not in error.response["Error"]["Message"]:
                raise


HANDLERS = (Topic(), TopicPolicy(), TopicSubscription())
