"""EC2 security groups and their rules."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys
from rehearsal.adapter.input_diff import PropertyPath
from rehearsal.adapter.refresh import describe, select, tag_dict
from rehearsal.adapter.tagging import update_ec2_tags

_DEFAULT_EGRESS = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


class SecurityGroup(Handler):
    """An EC2 security group without rules."""

    type = "aws:ec2/securityGroup:SecurityGroup"
    keys = input_keys("vpcId", "name", "description", "tags")
    name_input = "name"
    replace_on_changes = frozenset({"vpcId", "name", "description"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the group, and remove EC2's default egress rule."""
        ec2 = call.aws.client("ec2")
        name = self.physical_name(call)
        group_id = ec2.create_security_group(
            GroupName=name,
            Description=call.inputs.get("description", "Managed by Pulumi"),
            VpcId=call.inputs["vpcId"],
            **call.tag_specification("security-group"),
        )["GroupId"]
        # As the provider does: remove EC2's default rule, which allows all egress. Only the program's rules apply.
        ec2.revoke_security_group_egress(GroupId=group_id, IpPermissions=_DEFAULT_EGRESS)
        return group_id, {"name": name}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = describe(call, "describe_security_groups", "SecurityGroups", "group-id")
        if group is None:
            return None
        inputs = select(group, vpcId="VpcId", name="GroupName", description="Description")
        return ReadResult(inputs={**inputs, "tags": tag_dict(group.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the security group."""
        call.aws.client("ec2").delete_security_group(GroupId=call.id)


class DefaultSecurityGroup(Handler):
    """The default security group of a VPC, without rules. The VPC creates and deletes it.

    As the provider does: creation adopts the group and revokes all of its rules; deletion changes nothing in AWS.
    https://registry.terraform.io/providers/hashicorp/aws/latest/docs/resources/default_security_group
    """

    type = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
    keys = input_keys("vpcId", "tags")
    replace_on_changes = frozenset({"vpcId"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Revoke the rules of the group and put its tags."""
        ec2 = call.aws.client("ec2")
        in_vpc = [
            {"Name": "vpc-id", "Values": [call.inputs["vpcId"]]},
            {"Name": "group-name", "Values": ["default"]},
        ]
        (group,) = ec2.describe_security_groups(Filters=in_vpc)["SecurityGroups"]
        group_id = group["GroupId"]
        by_group = [{"Name": "group-id", "Values": [group_id]}]
        for rule in ec2.describe_security_group_rules(Filters=by_group)["SecurityGroupRules"]:
            revoke = ec2.revoke_security_group_egress if rule["IsEgress"] else ec2.revoke_security_group_ingress
            revoke(GroupId=group_id, SecurityGroupRuleIds=[rule["SecurityGroupRuleId"]])
        if call.tags:
            ec2.create_tags(Resources=[group_id], Tags=call.tags)
        return group_id, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = describe(call, "describe_security_groups", "SecurityGroups", "group-id")
        if group is None:
            return None
        return ReadResult(inputs={**select(group, vpcId="VpcId"), "tags": tag_dict(group.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Change nothing: EC2 deletes the group with its VPC."""


class _Rule(Handler):
    """One security group rule. `direction` is part of the name of EC2's API calls."""

    keys = input_keys(
        "securityGroupId",
        "referencedSecurityGroupId",
        "cidrIpv4",
        "ipProtocol",
        "fromPort",
        "toPort",
        "description",
        "tags",
    )
    replace_on_changes = frozenset({"securityGroupId"})
    direction: str
    _sources = ("cidrIpv4", "referencedSecurityGroupId")

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the rule."""
        permission: dict[str, Any] = call.api_arguments(ipProtocol="IpProtocol", fromPort="FromPort", toPort="ToPort")
        description = call.api_arguments(description="Description")
        if "referencedSecurityGroupId" in call.inputs:
            permission["UserIdGroupPairs"] = [{"GroupId": call.inputs["referencedSecurityGroupId"], **description}]
        if "cidrIpv4" in call.inputs:
            permission["IpRanges"] = [{"CidrIp": call.inputs["cidrIpv4"], **description}]
        authorize = getattr(call.aws.client("ec2"), f"authorize_security_group_{self.direction}")
        response = authorize(
            GroupId=call.inputs["securityGroupId"],
            IpPermissions=[permission],
            **call.tag_specification("security-group-rule"),
        )
        return response["SecurityGroupRules"][0]["SecurityGroupRuleId"], {}

    def requires_replacement(
        self, path: PropertyPath, old_inputs: Mapping[str, Any], new_inputs: Mapping[str, Any]
    ) -> bool:
        """A rule is replaced when it changes from one kind of source to another."""
        return super().requires_replacement(path, old_inputs, new_inputs) or (
            path[0] in self._sources and not (path[0] in old_inputs and path[0] in new_inputs)
        )

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the rule and its tags."""
        if call.has_changed(*(self.keys.keys() - {"tags"})):
            rule = call.api_arguments(
                cidrIpv4="CidrIpv4",
                referencedSecurityGroupId="ReferencedGroupId",
                ipProtocol="IpProtocol",
                fromPort="FromPort",
                toPort="ToPort",
                description="Description",
            )
            call.aws.client("ec2").modify_security_group_rules(
                GroupId=call.inputs["securityGroupId"],
                SecurityGroupRules=[{"SecurityGroupRuleId": call.id, "SecurityGroupRule": rule}],
            )
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        rule = describe(call, "describe_security_group_rules", "SecurityGroupRules", "security-group-rule-id")
        if rule is None:
            return None
        inputs = select(
            rule,
            securityGroupId="GroupId",
            cidrIpv4="CidrIpv4",
            ipProtocol="IpProtocol",
            fromPort="FromPort",
            toPort="ToPort",
            description="Description",
        )
        source = select(rule.get("ReferencedGroupInfo", {}), referencedSecurityGroupId="GroupId")
        return ReadResult(inputs={**inputs, **source, "tags": tag_dict(rule.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the rule."""
        revoke = getattr(call.aws.client("ec2"), f"revoke_security_group_{self.direction}")
        revoke(GroupId=call.inputs["securityGroupId"], SecurityGroupRuleIds=[call.id])


class IngressRule(_Rule):
    """An ingress rule of a security group."""

    type = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    direction = "ingress"


class EgressRule(_Rule):
    """An egress rule of a security group."""

    type = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    direction = "egress"


HANDLERS = (SecurityGroup(), DefaultSecurityGroup(), IngressRule(), EgressRule())
