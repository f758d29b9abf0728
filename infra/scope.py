"""Account, region and Availability Zone of a stack, and the tags of its resources."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi

from trainyard.aws import tags


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Account, region and Availability Zone of a stack, from lookups.

    `boundary` is the ARN of the permissions boundary of every role; None before it exists.
    """

    project: str
    stack: str
    account: str
    region: str
    partition: str
    dns_suffix: str
    zone: str
    boundary: pulumi.Input[str] | None = None
    extra_tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def iam_path(self) -> str:
        """The IAM path of the stack's roles, instance profiles and policies, by which policies can name them.

        https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
        """
        return f"/trainyard/{self.project}/{self.stack}/"

    @property
    def stack_tag(self) -> str:
        """The value of the tag that all resources of the stack have."""
        return tags.stack_tag(self.project, self.stack)

    def own_tags(self, role: str) -> dict[str, str]:
        """Return the tags by which Trainyard finds the resource."""
        return tags.own_tags(self.project, self.stack, role)

    def tags(self, role: str) -> dict[str, str]:
        """Return all tags of a resource with this role. The user's tags do not replace Trainyard's."""
        return {**self.extra_tags, **self.own_tags(role)}
