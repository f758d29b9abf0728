"""Security groups and their rules."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.changes import Changed
from rehearsal.adapter.handler import Call, Handler, Made, known
from rehearsal.adapter.tagging import retag

_ALL_OUT = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


class SecurityGroup(Handler):
    type = "aws:ec2/securityGroup:SecurityGroup"
    keys = known("vpcId", "name", "description", "tags")
    named = "name"
    replaces = frozenset({"vpcId", "name", "description"})

    def create(self, call: Call) -> Made:
        ec2 = call.aws.client("ec2")
        name = self.name_of(call)
        made = ec2.create_security_group(
            GroupName=name,
            Description=call.inputs.get("description", "Managed by Pulumi"),
            VpcId=call.inputs["vpcId"],
            **call.tag_specification("security-group"),
        )["GroupId"]
        # As the provider does: EC2's own rule that lets everything out goes, so that only stated rules hold.
        ec2.revoke_security_group_egress(GroupId=made, IpPermissions=_ALL_OUT)
        return made, {"name": name}

    def update(self, call: Call) -> dict[str, Any]:
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_security_group(GroupId=call.id)


class _Rule(Handler):
    """One rule of a group. EC2 names the calls by the direction."""

    keys = known(
        "securityGroupId",
        "referencedSecurityGroupId",
        "cidrIpv4",
        "ipProtocol",
        "fromPort",
        "toPort",
        "description",
        "tags",
    )
    replaces = frozenset({"securityGroupId"})
    direction: str
    _sources = ("cidrIpv4", "referencedSecurityGroupId")

    def create(self, call: Call) -> Made:
        permission: dict[str, Any] = call.only(ipProtocol="IpProtocol", fromPort="FromPort", toPort="ToPort")
        about = call.only(description="Description")
        if "referencedSecurityGroupId" in call.inputs:
            permission["UserIdGroupPairs"] = [{"GroupId": call.inputs["referencedSecurityGroupId"], **about}]
        if "cidrIpv4" in call.inputs:
            permission["IpRanges"] = [{"CidrIp": call.inputs["cidrIpv4"], **about}]
        authorize = getattr(call.aws.client("ec2"), f"authorize_security_group_{self.direction}")
        answer = authorize(
            GroupId=call.inputs["securityGroupId"],
            IpPermissions=[permission],
            **call.tag_specification("security-group-rule"),
        )
        return answer["SecurityGroupRules"][0]["SecurityGroupRuleId"], {}

    def forces(self, path: Changed, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        """A rule never comes to name another kind of source."""
        return super().forces(path, olds, news) or (
            path[0] in self._sources and not (path[0] in olds and path[0] in news)
        )

    def update(self, call: Call) -> dict[str, Any]:
        changed = [key for key in self.keys if key != "tags" and call.changed(key)]
        if changed:
            raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change {', '.join(changed)}")
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        revoke = getattr(call.aws.client("ec2"), f"revoke_security_group_{self.direction}")
        revoke(GroupId=call.inputs["securityGroupId"], SecurityGroupRuleIds=[call.id])


class IngressRule(_Rule):
    type = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    direction = "ingress"


class EgressRule(_Rule):
    type = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    direction = "egress"


HANDLERS = (SecurityGroup(), IngressRule(), EgressRule())
