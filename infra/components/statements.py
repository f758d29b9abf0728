"""Statements of IAM policies, and the JSON documents that hold them.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html
"""

from collections.abc import Sequence
from typing import Any

import pulumi

Statement = dict[str, Any]


def policy_document(*statements: Statement) -> pulumi.Output[str]:
    """Return the policy with these statements as JSON."""
    return pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(sid: str, actions: Sequence[str], resources: Sequence[Any], **elements: Any) -> Statement:
    """Return a statement that allows actions on resources. `elements`: others, such as Principal or Condition."""
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources), **elements}
