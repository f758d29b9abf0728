"""Where a stack is built, looked up once, and the tags by which everything of it is found again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi_aws as aws

from contract import tags
from contract.base import CONFIG_KEY, InputError, Problem
from contract.settings import StackSettings


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Account, region and zone of a stack. Plain values: they come from look-ups, not from resources."""

    project: str
    stack: str
    account: str
    region: str
    partition: str
    dns_suffix: str
    zone: str
    extra_tags: Mapping[str, str] = field(default_factory=dict)

    def own_tags(self, role: str) -> dict[str, str]:
        """The three tags that Trainyard itself goes by."""
        return {"Name": f"{self.project}-{self.stack}-{role}", tags.STACK: self.stack, tags.ROLE: role}

    def tags(self, role: str) -> dict[str, str]:
        """All tags of a resource in this role. The user's never replace ours: a stack is found by them."""
        return {**self.extra_tags, **self.own_tags(role)}


def look_up_scope(project: str, stack: str, settings: StackSettings) -> Scope:
    """Ask AWS where we are. Raises InputError when no zone of the region offers the instance types."""
    partition = aws.get_partition()
    region = aws.get_region().region
    return Scope(
        project=project,
        stack=stack,
        account=aws.get_caller_identity().account_id,
        region=region,
        partition=partition.partition,
        dns_suffix=partition.dns_suffix,
        zone=_zone(region, settings),
        extra_tags=settings.tags,
    )


def _zone(region: str, settings: StackSettings) -> str:
    """The zone asked for, else the region's first; in either case one that offers every instance type of the stack."""
    wanted = {settings.instance_type, settings.head_instance_type}
    offered = aws.ec2.get_instance_type_offerings(
        location_type="availability-zone",
        filters=[{"name": "instance-type", "values": sorted(wanted)}],
    )
    offers = set(zip(offered.locations, offered.instance_types, strict=True))
    usable = [
        zone
        for zone in sorted(aws.get_availability_zones(state="available").names)
        if all((zone, name) in offers for name in wanted)
    ]
    asked = settings.network.zone
    if asked in usable or (asked is None and usable):
        return asked or usable[0]
    names = " and ".join(sorted(wanted))
    raise InputError(
        [
            Problem(
                key=f"{CONFIG_KEY}.network.zone",
                value=asked,
                why=f"no zone that we may use offers {names}" if asked is None else f"does not offer {names}",
                fix=f"Choose one of {', '.join(usable)}"
                if usable
                else f"Choose other types, or a region beside {region}",
            )
        ]
    )
