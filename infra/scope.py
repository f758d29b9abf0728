"""Where a stack is built, and the tags by which everything of it is found again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.aws import tags


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Account, region and zone of a stack. Plain values: they come from look-ups, not from resources.

    `boundary`: ARN of the permissions boundary of every role, where there is one.
    """

    project: str
    stack: str
    account: str
    region: str
    partition: str
    dns_suffix: str
    zone: str
    boundary: str | None = None
    extra_tags: Mapping[str, str] = field(default_factory=dict)

    def own_tags(self, role: str) -> dict[str, str]:
        """The three tags that Trainyard itself goes by."""
        return {"Name": f"{self.project}-{self.stack}-{role}", tags.STACK: self.stack, tags.ROLE: role}

    def tags(self, role: str) -> dict[str, str]:
        """All tags of a resource in this role. The user's never replace ours: a stack is found by them."""
        return {**self.extra_tags, **self.own_tags(role)}
