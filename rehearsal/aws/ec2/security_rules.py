"""Security group rules as EC2 shows them, and its refusal of a rule that a group already has."""

from collections.abc import Callable, Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response

from rehearsal.aws.extension import extend, refuse

Rule = tuple[str, int | None, int | None, str]
_PROTOCOLS = {"6": "tcp", "17": "udp", "1": "icmp", "all": "-1"}


def _asked(permissions: list[dict[str, Any]]) -> Iterator[Rule]:
    for each in permissions:
        protocol = str(each["IpProtocol"]).lower()
        protocol = _PROTOCOLS.get(protocol, protocol)
        ports = (None, None) if protocol == "-1" else (int(each["FromPort"]), int(each["ToPort"]))
        for key, name in (
            ("IpRanges", "CidrIp"),
            ("Ipv6Ranges", "CidrIpv6"),
            ("UserIdGroupPairs", "GroupId"),
            ("PrefixListIds", "PrefixListId"),
        ):
            for peer in each.get(key) or []:
                if peer.get(name):
                    yield (protocol, *ports, peer[name])


def _held(rule: Any) -> Rule:
    peer = rule.cidr_ipv4 or rule.cidr_ipv6 or rule.source_group.get("GroupId") or rule.prefix_list_id
    ports = (None, None) if rule.ip_protocol == "-1" else (rule.from_port, rule.to_port)
    return rule.ip_protocol, *ports, peer


def _refusing_twice(authorize: Callable[[Any], Any], side: str) -> Callable[[Any], Any]:
    def answer(self: Any) -> Any:
        group = self.ec2_backend.get_security_group_from_id(self._get_param("GroupId"))
        held = {_held(rule) for rule in getattr(group, side)} if group else set()
        for rule in _asked(self._get_param("IpPermissions", [])):
            if rule in held:
                protocol, first, last, peer = rule
                ports = "ALL" if protocol == "-1" else f"{protocol.upper()}, from port: {first}, to port: {last}"
                message = f'the specified rule "peer: {peer}, {ports}, ALLOW" already exists'
                raise refuse("InvalidPermission.Duplicate", message)
        known = {rule.id for rule in getattr(group, side)} if group else set()
        authorize(self)
        made = [rule for rule in getattr(group, side) if rule.id not in known]  # moto answers with the last only
        return ActionResult({"Return": True, "SecurityGroupRules": made})

    return answer


def install() -> None:
    extend(
        EC2Response,
        authorize_security_group_ingress=_refusing_twice(EC2Response.authorize_security_group_ingress, "ingress_rules"),
        authorize_security_group_egress=_refusing_twice(EC2Response.authorize_security_group_egress, "egress_rules"),
    )
    extend(
        SecurityGroupRule,
        description=property(lambda self: self.ip_range.get("Description") or self.source_group.get("Description")),
    )
