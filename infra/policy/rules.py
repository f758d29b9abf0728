"""The rules, as plain functions on a resource's type and inputs (in the provider's own spelling)."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.policy.unscoped import UNSCOPED
from trainyard.aws import tags

Inputs = Mapping[str, Any]
Check = Callable[[str, Inputs], Iterator[str]]


@dataclass(frozen=True, kw_only=True)
class PolicyRule:
    """`check` yields a sentence for each way in which a resource breaks the rule."""

    name: str
    description: str
    check: Check


def volumes_are_encrypted(kind: str, inputs: Inputs) -> Iterator[str]:
    devices = [("rootBlockDevice", inputs.get("rootBlockDevice"))] if kind.endswith(":Instance") else []
    if kind.endswith(":LaunchTemplate"):
        devices = [(one["deviceName"], one.get("ebs")) for one in inputs.get("blockDeviceMappings", [])]
        devices = devices or [("its root volume", None)]
    for name, device in devices:
        if not device or device.get("encrypted") not in (True, "true"):
            yield f"{name} is not encrypted"
        elif not device.get("kmsKeyId"):
            yield f"{name} is under no key that the stack names"


def metadata_needs_a_token(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith((":Instance", ":LaunchTemplate")):
        options = inputs.get("metadataOptions", {})
        if options.get("httpTokens") != "required":
            yield "the metadata service answers without a token (IMDSv1)"
        if options.get("httpPutResponseHopLimit") != 1:
            yield "the metadata service's answers may leave the instance: its hop limit is not 1"


def nothing_comes_in_from_outside(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":SecurityGroupIngressRule"):
        for key in ("cidrIpv4", "cidrIpv6", "prefixListId"):
            if key in inputs:
                yield f"{inputs[key]} may come in; admit security groups only"
    if kind.endswith(":SecurityGroup") and inputs.get("ingress"):
        yield "its inbound rules stand in the group itself, where no rule of ours looks"


def nothing_has_a_public_address(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":Instance") and inputs.get("associatePublicIpAddress") is not False:
        yield "it may get a public address"
    if kind.endswith(":Subnet") and inputs.get("mapPublicIpOnLaunch"):
        yield "instances in it get a public address"
    if kind.endswith(":LaunchTemplate"):
        for one in inputs.get("networkInterfaces", []):
            if one.get("associatePublicIpAddress") in (True, "true"):
                yield f"interface {one.get('deviceIndex')} of card {one.get('networkCardIndex')} gets a public address"


def no_key_pair_is_named(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith((":Instance", ":LaunchTemplate")) and inputs.get("keyName"):
        yield "it may be reached by SSH; people come through Session Manager"


def policies_name_what_they_allow(kind: str, inputs: Inputs) -> Iterator[str]:
    if not kind.endswith(":RolePolicy"):
        return
    for statement in _statements(inputs.get("policy")):
        for action in _listed(statement.get("Action")):
            if "*" in action:
                yield f"{statement.get('Sid')} allows {action}"
            if "*" in _listed(statement.get("Resource")) and action not in UNSCOPED:
                yield f"{statement.get('Sid')} allows {action} on every resource, and UNSCOPED gives no reason"


def roles_are_taken_on_by_services(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":Role"):
        for statement in _statements(inputs.get("assumeRolePolicy")):
            if set(statement.get("Principal", {})) != {"Service"}:
                yield f"{statement.get('Principal')} may take it on"
        if inputs.get("managedPolicyArns"):
            yield f"bears {inputs['managedPolicyArns']}, which is broad and changes when its owner likes"


def everyone_is_someone_of_the_account(kind: str, inputs: Inputs) -> Iterator[str]:
    """An Allow to everyone stands under a condition that names the account."""
    if not kind.endswith((":BucketPolicy", ":Key", ":TopicPolicy")):
        return
    for statement in _statements(inputs.get("policy")):
        everyone = statement.get("Principal") in ("*", {"AWS": "*"})
        named = any("aws:SourceAccount" in keys or "kms:CallerAccount" in keys for keys in _conditions(statement))
        if statement.get("Effect") == "Allow" and everyone and not named:
            yield f"{statement.get('Sid')} allows everyone, in any account"


def buckets_are_private(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":BucketPublicAccessBlock"):
        for key in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"):
            if inputs.get(key) is not True:
                yield f"{key} is not on"


def buckets_speak_tls_only(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":BucketPolicy"):
        plain = {"Bool": {"aws:SecureTransport": "false"}}
        statements = _statements(inputs.get("policy"))
        if not any(one.get("Effect") == "Deny" and one.get("Condition") == plain for one in statements):
            yield "plain HTTP is not denied"


def keys_rotate(kind: str, inputs: Inputs) -> Iterator[str]:
    if kind.endswith(":Key") and inputs.get("enableKeyRotation") is not True:
        yield "the key does not rotate"


def topics_and_logs_are_encrypted(kind: str, inputs: Inputs) -> Iterator[str]:
    for suffix, key in ((":Topic", "kmsMasterKeyId"), (":LogGroup", "kmsKeyId")):
        if kind.endswith(suffix) and not inputs.get(key):
            yield f"{key} names no key"


def all_is_found_by_tags(kind: str, inputs: Inputs) -> Iterator[str]:
    borne = inputs.get("tags")
    if borne is None:
        return
    names = set(borne) if isinstance(borne, Mapping) else {one["key"] for one in borne}
    for name in (tags.STACK, tags.ROLE):
        if name not in names:
            yield f"bears no tag {name}"


def _rule(check: Check, description: str) -> PolicyRule:
    return PolicyRule(name=check.__name__.replace("_", "-"), description=description, check=check)


RULES: tuple[PolicyRule, ...] = (
    _rule(volumes_are_encrypted, "Root volumes are encrypted, under a key that the stack names."),
    _rule(metadata_needs_a_token, "Instances answer IMDSv2 only, with a hop limit of 1."),
    _rule(nothing_comes_in_from_outside, "No inbound rule admits an address range."),
    _rule(nothing_has_a_public_address, "No instance has a public address."),
    _rule(no_key_pair_is_named, "No instance has an SSH key pair."),
    _rule(policies_name_what_they_allow, "Role policies name actions and resources; * only where a reason is given."),
    _rule(roles_are_taken_on_by_services, "Roles are for AWS's services, and bear no policies but their own."),
    _rule(everyone_is_someone_of_the_account, "Resource policies open nothing to other accounts."),
    _rule(buckets_are_private, "Public access to buckets is blocked, in all four ways."),
    _rule(buckets_speak_tls_only, "Buckets deny plain HTTP."),
    _rule(keys_rotate, "KMS keys rotate."),
    _rule(topics_and_logs_are_encrypted, "Topics and log groups are under a key."),
    _rule(all_is_found_by_tags, "What bears tags bears those by which Trainyard finds it."),
)


def _statements(policy: Any) -> list[dict[str, Any]]:
    found = json.loads(policy) if isinstance(policy, str) else policy or {}
    statements: list[dict[str, Any]] = found.get("Statement", [])
    return statements


def _conditions(statement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(statement.get("Condition", {}).values())


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
