"""Statements of IAM policies, and the JSON documents that hold them.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html
"""

from collections.abc import Sequence
from typing import Any

import pulumi

from infra.scope import Scope
from trainyard.aws import tags

Statement = dict[str, Any]


def policy_document(*statements: Statement) -> pulumi.Output[str]:
    """Return the policy with these statements as JSON."""
    return pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(sid: str, actions: Sequence[str], resources: Sequence[Any], **elements: Any) -> Statement:
    """Return a statement that allows actions on resources. `elements`: others, such as Principal or Condition."""
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources), **elements}


def stack_groups(scope: Scope, sid: str, actions: Sequence[str], **conditions: Any) -> Statement:
    """Allow actions on the stack's Auto Scaling groups, selected by tag: the engine generates their names."""
    groups = f"arn:{scope.partition}:autoscaling:{scope.region}:{scope.account}:autoScalingGroup:*"
    return allow(sid, actions, [groups], Condition=_tagged(scope) | conditions)


def stack_reservations(scope: Scope, sid: str, actions: Sequence[str]) -> Statement:
    """Allow actions on the capacity reservations of the stack, selected by tag."""
    reservations = f"arn:{scope.partition}:ec2:{scope.region}:{scope.account}:capacity-reservation/*"
    return allow(sid, actions, [reservations], Condition=_tagged(scope))


def _tagged(scope: Scope) -> dict[str, dict[str, str]]:
    return {"StringEquals": {f"aws:ResourceTag/{tags.STACK}": scope.stack_tag}}
