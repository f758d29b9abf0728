"""Security group rules: EC2's error for a duplicate rule, descriptions in responses, modification, default groups."""

from collections.abc import Callable, Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response

from rehearsal.aws.moto_extension import ec2_error, extend

Rule = tuple[str, int | None, int | None, str]
_PROTOCOLS = {"6": "tcp", "17": "udp", "1": "icmp", "all": "-1"}

_moto_create_group = EC2Backend.create_security_group


def create_security_group(self: Any, *args: Any, **options: Any) -> Any:
    """Create a group. The default group of a VPC allows all traffic from itself, which moto omits.

    https://docs.aws.amazon.com/vpc/latest/userguide/default-security-group.html
    """
    group = _moto_create_group(self, *args, **options)
    if group.is_default and group.vpc_id:
        group.add_ingress_rule(
            SecurityGroupRule(self, "-1", group.id, None, None, {}, {"GroupId": group.id}, is_egress=False)
        )
    return group


def _requested_rules(permissions: list[dict[str, Any]]) -> Iterator[Rule]:
    for permission in permissions:
        protocol = str(permission["IpProtocol"]).lower()
        protocol = _PROTOCOLS.get(protocol, protocol)
        ports = (None, None) if protocol == "-1" else (int(permission["FromPort"]), int(permission["ToPort"]))
        for key, name in (
            ("IpRanges", "CidrIp"),
            ("Ipv6Ranges", "CidrIpv6"),
            ("UserIdGroupPairs", "GroupId"),
            ("PrefixListIds", "PrefixListId"),
        ):
            for peer in permission.get(key) or []:
                if peer.get(name):
                    yield (protocol, *ports, peer[name])


def _rule_key(rule: Any) -> Rule:
    peer = rule.cidr_ipv4 or rule.cidr_ipv6 or rule.source_group.get("GroupId") or rule.prefix_list_id
    ports = (None, None) if rule.ip_protocol == "-1" else (rule.from_port, rule.to_port)
    return rule.ip_protocol, *ports, peer


def _rejecting_duplicates(authorize: Callable[[Any], Any], side: str) -> Callable[[Any], Any]:
    def authorize_once(self: Any) -> Any:
        group = self.ec2_backend.get_security_group_from_id(self._get_param("GroupId"))
        existing = {_rule_key(rule) for rule in getattr(group, side)} if group else set()
        for rule in _requested_rules(self._get_param("IpPermissions", [])):
            if rule in existing:
                protocol, first, last, peer = rule
                ports = "ALL" if protocol == "-1" else f"{protocol.upper()}, from port: {first}, to port: {last}"
                message = f'the specified rule "peer: {peer}, {ports}, ALLOW" already exists'
                raise ec2_error("InvalidPermission.Duplicate", message)
        existing_ids = {rule.id for rule in getattr(group, side)} if group else set()
        authorize(self)
        created = [
            rule for rule in getattr(group, side) if rule.id not in existing_ids
        ]  # moto returns only the last rule
        return ActionResult({"Return": True, "SecurityGroupRules": created})

    return authorize_once


def _modify(self: Any) -> Any:
    """ModifySecurityGroupRules for rules with a CIDR range or a group; moto's accepts IPv4 ranges with ports only."""
    group = self.ec2_backend.get_security_group_from_id(self._get_param("GroupId"))
    for item in self._get_param("SecurityGroupRules", []):
        rule_id, new = item["SecurityGroupRuleId"], item["SecurityGroupRule"]
        rule = group.get_rule(rule_id) if group else None
        if rule is None:
            message = f"The security group rule ID '{rule_id}' does not exist"
            raise ec2_error("InvalidSecurityGroupRuleId.NotFound", message)
        rule.ip_protocol = _PROTOCOLS.get(new["IpProtocol"], new["IpProtocol"])
        has_ports = rule.ip_protocol != "-1"
        rule.from_port, rule.to_port = (int(new["FromPort"]), int(new["ToPort"])) if has_ports else (None, None)
        description = {"Description": new["Description"]} if new.get("Description") else {}
        if "CidrIpv4" in new:
            rule.ip_range = {"CidrIp": new["CidrIpv4"], **description}
        if "ReferencedGroupId" in new:
            rule.source_group = {**rule.source_group, "GroupId": new["ReferencedGroupId"], **description}
    return ActionResult({"Return": True})


def install() -> None:
    """Add the duplicate check, the descriptions, the modification and the rule of default groups to moto."""
    extend(EC2Backend, create_security_group)
    extend(
        EC2Response,
        authorize_security_group_ingress=_rejecting_duplicates(
            EC2Response.authorize_security_group_ingress, "ingress_rules"
        ),
        authorize_security_group_egress=_rejecting_duplicates(
            EC2Response.authorize_security_group_egress, "egress_rules"
        ),
        modify_security_group_rules=_modify,
    )
    extend(
        SecurityGroupRule,
        description=property(lambda self: self.ip_range.get("Description") or self.source_group.get("Description")),
    )
