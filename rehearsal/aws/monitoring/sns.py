"""SNS subscriptions: an email address receives nothing, and cannot be unsubscribed, until its owner confirms."""

from typing import Any

from moto.sns.exceptions import SNSInvalidParameter
from moto.sns.models import SNSBackend

from rehearsal.aws.iam.policies import AccessRequest, Principal, evaluate_policies
from rehearsal.aws.iam.service_authorization import can_use_key, policy_allows
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.keys import find_key

_AUTO_CONFIRMED_PROTOCOLS = frozenset(["application", "firehose", "lambda", "sms", "sqs"])
# Source: https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
_REQUIRED_ACTIONS = ("kms:Decrypt", "kms:GenerateDataKey")


def install() -> None:
    """Extend moto, which confirms every subscription at once."""
    moto_subscribe, moto_unsubscribe = SNSBackend.subscribe, SNSBackend.unsubscribe

    def subscribe(self: Any, topic_arn: str, endpoint: str, protocol: str) -> Any:
        subscription = moto_subscribe(self, topic_arn, endpoint, protocol)
        pending = protocol not in _AUTO_CONFIRMED_PROTOCOLS
        subscription.attributes |= {"PendingConfirmation": pending, "ConfirmationWasAuthenticated": not pending}
        return subscription

    def unsubscribe(self: Any, subscription_arn: str) -> None:
        """Source of the error message: https://github.com/go-to-k/cdkd/issues/1301"""
        subscription = self.subscriptions.get(subscription_arn)
        if subscription is not None and subscription.attributes["PendingConfirmation"]:
            raise SNSInvalidParameter(
                "Invalid parameter: SubscriptionArn Reason: "
                "Cannot unsubscribe a subscription that is pending confirmation"
            )
        moto_unsubscribe(self, subscription_arn)

    extend(SNSBackend, subscribe, unsubscribe)


def publish_denial_reason(backend: Any, topic_arn: str, service: str, source: str) -> str | None:
    """Return why a service can't publish to a topic on behalf of the resource `source` (an ARN); None if it can.

    A topic's default policy allows resources of the owner's account. No service can use the AWS managed key for SNS.
    """
    topic = backend.topics.get(topic_arn)
    if topic is None:
        return "Topic does not exist"
    request = AccessRequest("sns:Publish", topic_arn)
    owner_request = request.with_context(
        {"aws:sourceowner": ACCOUNT, "aws:sourceaccount": ACCOUNT, "aws:sourcearn": source}
    )
    as_owner = evaluate_policies([topic.policy], owner_request, Principal(frozenset()))
    if not policy_allows(topic.policy, request, service, source) and as_owner != "Allow":
        return "does not have authorization to publish to the SNS topic"
    if topic.kms_master_key_id:
        key = find_key(ACCOUNT, backend.region_name, topic.kms_master_key_id)
        if not can_use_key(key, _REQUIRED_ACTIONS, service, source, {}):
            return "does not have authorization to access the SNS topic encryption key"
    return None
