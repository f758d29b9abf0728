"""SNS as it treats people: an e-mail address hears nothing, and can't be taken away, until its owner has confirmed."""

from typing import Any

from moto.sns.exceptions import SNSInvalidParameter
from moto.sns.models import SNSBackend

from rehearsal.aws.extension import extend
from rehearsal.aws.iam.policies import Ask, Who, judge
from rehearsal.aws.iam.service_authorization import lets, may_use
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.keys import find_key

_UNASKED = frozenset(["application", "firehose", "lambda", "sms", "sqs"])
# Source: https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
_USES = ("kms:Decrypt", "kms:GenerateDataKey")


def install() -> None:
    """moto has every subscription confirmed by itself."""
    join, leave = SNSBackend.subscribe, SNSBackend.unsubscribe

    def subscribe(self: Any, topic_arn: str, endpoint: str, protocol: str) -> Any:
        made = join(self, topic_arn, endpoint, protocol)
        pending = protocol not in _UNASKED
        made.attributes |= {"PendingConfirmation": pending, "ConfirmationWasAuthenticated": not pending}
        return made

    def unsubscribe(self: Any, subscription_arn: str) -> None:
        """Source of the words: https://github.com/go-to-k/cdkd/issues/1301"""
        found = self.subscriptions.get(subscription_arn)
        if found is not None and found.attributes["PendingConfirmation"]:
            raise SNSInvalidParameter(
                "Invalid parameter: SubscriptionArn Reason: "
                "Cannot unsubscribe a subscription that is pending confirmation"
            )
        leave(self, subscription_arn)

    extend(SNSBackend, subscribe, unsubscribe)


def why_unheard(backend: Any, topic_arn: str, service: str, source: str) -> str | None:
    """Why a service can't publish to a topic of this account for the thing of the ARN `source`; None where it can.

    A topic's own first policy lets whatever the owner's account has. AWS's own key for SNS is open to no service.
    """
    topic = backend.topics.get(topic_arn)
    if topic is None:
        return "Topic does not exist"
    ask = Ask("sns:Publish", topic_arn)
    owner = ask.also({"aws:sourceowner": ACCOUNT, "aws:sourceaccount": ACCOUNT, "aws:sourcearn": source})
    if not lets(topic.policy, ask, service, source) and judge([topic.policy], owner, Who(frozenset())) != "Allow":
        return "does not have authorization to publish to the SNS topic"
    if topic.kms_master_key_id:
        key = find_key(ACCOUNT, backend.region_name, topic.kms_master_key_id)
        if not may_use(key, _USES, service, source, {}):
            return "does not have authorization to access the SNS topic encryption key"
    return None
