"""Security rules as functions of a resource's type and inputs (provider property names)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.policy.unscoped import UNSCOPED
from trainyard.aws import tags

Inputs = Mapping[str, Any]
_ROLE_ARN = re.compile(r"arn:[^:]+:iam::\d{12}:role/.+")
Check = Callable[[str, Inputs], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """A security rule. `check` yields a message for each violation."""

    name: str
    description: str
    check: Check


def volumes_are_encrypted(kind: str, inputs: Inputs) -> Iterator[str]:
    """Root volumes are encrypted with a configured KMS key."""
    if not kind.endswith(":LaunchTemplate"):
        return
    devices = [(device["deviceName"], device.get("ebs")) for device in inputs.get("blockDeviceMappings", [])]
    for name, device in devices or [("its root volume", None)]:
        if not device or device.get("encrypted") not in (True, "true"):
            yield f"{name} is not encrypted"
        elif not device.get("kmsKeyId"):
            yield f"{name} is not encrypted with a configured KMS key"


def imdsv2_is_required(kind: str, inputs: Inputs) -> Iterator[str]:
    """Instances support IMDSv2 only, with a hop limit of 1."""
    if kind.endswith(":LaunchTemplate"):
        options = inputs.get("metadataOptions", {})
        if options.get("httpTokens") != "required":
            yield "IMDSv1 is enabled"
        if options.get("httpPutResponseHopLimit") != 1:
            yield "the hop limit of the metadata service is not 1"


def no_inbound_from_cidr(kind: str, inputs: Inputs) -> Iterator[str]:
    """Ingress rules allow security groups only."""
    if kind.endswith(":SecurityGroupIngressRule"):
        for key in ("cidrIpv4", "cidrIpv6", "prefixListId"):
            if key in inputs:
                yield f"allows inbound traffic from {inputs[key]}; allow security groups only"
    if kind.endswith(":SecurityGroup") and inputs.get("ingress"):
        yield "has inline ingress rules, which are not validated"


def default_security_groups_are_empty(kind: str, inputs: Inputs) -> Iterator[str]:
    """Default security groups have no rules."""
    if kind.endswith(":DefaultSecurityGroup"):
        for key in ("ingress", "egress"):
            if inputs.get(key):
                yield f"has {key} rules"


def no_public_ip(kind: str, inputs: Inputs) -> Iterator[str]:
    """Instances have no public IP address."""
    if kind.endswith(":Subnet") and inputs.get("mapPublicIpOnLaunch"):
        yield "assigns public IP addresses"
    if kind.endswith(":LaunchTemplate"):
        for interface in inputs.get("networkInterfaces", []):
            if interface.get("associatePublicIpAddress") in (True, "true"):
                device, card = interface.get("deviceIndex"), interface.get("networkCardIndex")
                yield f"interface {device} of network card {card} gets a public IP address"


def no_ssh_key_pair(kind: str, inputs: Inputs) -> Iterator[str]:
    """Instances have no SSH key pair."""
    if kind.endswith(":LaunchTemplate") and inputs.get("keyName"):
        yield "has an SSH key pair; operators use Session Manager"


def policies_are_specific(kind: str, inputs: Inputs) -> Iterator[str]:
    """Role policies name actions and resources, except the actions of UNSCOPED."""
    if not kind.endswith(":RolePolicy"):
        return
    for statement in _statements(inputs.get("policy")):
        if statement.get("Effect") == "Deny":
            continue
        for action in _listed(statement.get("Action")):
            if "*" in action:
                yield f"{statement.get('Sid')} allows {action}"
            if "*" in _listed(statement.get("Resource")) and action not in UNSCOPED:
                yield f"{statement.get('Sid')} allows {action} on every resource, and is not in UNSCOPED"


def only_services_and_roles_assume_roles(kind: str, inputs: Inputs) -> Iterator[str]:
    """Only AWS services and named roles assume roles, and roles have no managed policies."""
    if kind.endswith(":Role"):
        for statement in _statements(inputs.get("assumeRolePolicy")):
            principal = statement.get("Principal", {})
            names = _listed(principal.get("AWS")) if isinstance(principal, dict) else [principal]
            is_role = all(isinstance(name, str) and _ROLE_ARN.fullmatch(name) for name in names)
            if not is_role or set(principal) - {"Service", "AWS"}:
                yield f"{principal} may assume it"
        if inputs.get("managedPolicyArns"):
            yield f"has managed policies {inputs['managedPolicyArns']}, whose owner may change them"


def roles_have_a_boundary(kind: str, inputs: Inputs) -> Iterator[str]:
    """Roles have a permissions boundary and the path of the project."""
    if kind.endswith(":Role"):
        if not inputs.get("permissionsBoundary"):
            yield "has no permissions boundary"
        if not str(inputs.get("path")).startswith("/trainyard/"):
            yield f"has the path {inputs.get('path')}, not one below /trainyard/"


def wildcard_principal_is_limited(kind: str, inputs: Inputs) -> Iterator[str]:
    """An Allow with a wildcard principal has a condition on the account."""
    if not kind.endswith((":BucketPolicy", ":Key", ":TopicPolicy")):
        return
    for statement in _statements(inputs.get("policy")):
        wildcard = statement.get("Principal") in ("*", {"AWS": "*"})
        limited = any("aws:SourceAccount" in keys or "kms:CallerAccount" in keys for keys in _conditions(statement))
        if statement.get("Effect") == "Allow" and wildcard and not limited:
            yield f"{statement.get('Sid')} allows every AWS account"


def buckets_block_public_access(kind: str, inputs: Inputs) -> Iterator[str]:
    """Buckets block public access."""
    if kind.endswith(":BucketPublicAccessBlock"):
        for key in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"):
            if inputs.get(key) is not True:
                yield f"{key} is not true"


def buckets_require_tls(kind: str, inputs: Inputs) -> Iterator[str]:
    """Buckets deny requests without TLS."""
    if kind.endswith(":BucketPolicy"):
        plain = {"Bool": {"aws:SecureTransport": "false"}}
        statements = _statements(inputs.get("policy"))
        if not any(each.get("Effect") == "Deny" and each.get("Condition") == plain for each in statements):
            yield "requests without TLS are not denied"


def keys_rotate(kind: str, inputs: Inputs) -> Iterator[str]:
    """KMS keys rotate."""
    if kind.endswith(":Key") and inputs.get("enableKeyRotation") is not True:
        yield "key rotation is disabled"


def topics_and_logs_are_encrypted(kind: str, inputs: Inputs) -> Iterator[str]:
    """SNS topics and log groups have a KMS key."""
    for suffix, key in ((":Topic", "kmsMasterKeyId"), (":LogGroup", "kmsKeyId")):
        if kind.endswith(suffix) and not inputs.get(key):
            yield f"{key} is not set"


def resources_are_tagged(kind: str, inputs: Inputs) -> Iterator[str]:
    """Resources that support tags have those of Trainyard."""
    resource_tags = inputs.get("tags")
    if resource_tags is None:
        return
    is_mapping = isinstance(resource_tags, Mapping)
    names = set(resource_tags) if is_mapping else {tag["key"] for tag in resource_tags}
    for name in (tags.STACK, tags.ROLE):
        if name not in names:
            yield f"has no tag {name}"


def _rule(check: Check, description: str) -> PolicyRule:
    return PolicyRule(name=check.__name__.replace("_", "-"), description=description, check=check)


RULES: tuple[PolicyRule, ...] = (
    _rule(volumes_are_encrypted, "Root volumes are encrypted with a configured KMS key."),
    _rule(imdsv2_is_required, "Instances support IMDSv2 only, with a hop limit of 1."),
    _rule(no_inbound_from_cidr, "Ingress rules allow security groups only."),
    _rule(default_security_groups_are_empty, "Default security groups have no rules."),
    _rule(no_public_ip, "Instances have no public IP address."),
    _rule(no_ssh_key_pair, "Instances have no SSH key pair."),
    _rule(policies_are_specific, "Role policies name actions and resources; exceptions have a reason."),
    _rule(
        only_services_and_roles_assume_roles,
        "Only AWS services and named roles assume roles, and roles have no managed policies.",
    ),
    _rule(roles_have_a_boundary, "Roles have a permissions boundary and a path below /trainyard/."),
    _rule(wildcard_principal_is_limited, "Resource policies allow no other accounts."),
    _rule(buckets_block_public_access, "Buckets block public access."),
    _rule(buckets_require_tls, "Buckets deny requests without TLS."),
    _rule(keys_rotate, "KMS keys rotate."),
    _rule(topics_and_logs_are_encrypted, "SNS topics and log groups have a KMS key."),
    _rule(resources_are_tagged, "Resources that support tags have those of Trainyard."),
)


def _statements(policy: Any) -> list[dict[str, Any]]:
    document = json.loads(policy) if isinstance(policy, str) else policy or {}
    statements: list[dict[str, Any]] = document.get("Statement", [])
    return statements


def _conditions(statement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(statement.get("Condition", {}).values())


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
