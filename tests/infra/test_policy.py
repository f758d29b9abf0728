"""The rules of the policy pack: every stack passes, and each rule reports a violation."""

import copy
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from infra.policy.rules import RULES, PolicyRule
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.static_ec2 import SUBNET, VPC
from tests.infra.conftest import ROOT, deployed


def violations(run: Deployment, rule: PolicyRule, changes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the violations in a graph whose resources of some types have other inputs."""
    messages = []
    for each in run.resources.values():
        if each.custom:
            inputs = {**each.inputs, **changes.get(each.type.rpartition(":")[2], {})}
            messages += [f"{each.name}: {message}" for message in rule.check(each.type, inputs)]
    return messages


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_shipped_stack_passes_rule(shipped: Deployment, rule: PolicyRule) -> None:
    assert violations(shipped, rule, {}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"storage": {"kms_key": "arn:aws:kms:us-east-1:123456789012:key/mine", "bucket": "our-data"}},
        {"network": {"existing": {"vpc_id": VPC, "subnet_id": SUBNET}}},
        {"network": {"nat_gateway": False}, "node": {"provisioning": "skip"}},
        {"capacity": {"spot": {}}, "image": "ami-0123456789abcdef0", "guardrails": {"email": "team@example.com"}},
        {"identity": {"permissions_boundary": "arn:aws:iam::123456789012:policy/boundary"}},
    ],
    ids=["existing-key", "existing-network", "no-nat", "spot", "boundary"],
)
def test_other_stacks_pass_all_rules(changed: Callable[..., Deployment], changes: dict[str, Any]) -> None:
    run = changed(**changes)
    assert [message for rule in RULES for message in violations(run, rule, {})] == []


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


ALLOW = {"Sid": "Wide", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
VIOLATIONS: dict[str, list[tuple[dict[str, dict[str, Any]], str]]] = {
    "volumes-are-encrypted": [
        (
            {"LaunchTemplate": {"blockDeviceMappings": [{"deviceName": "/dev/sda1", "ebs": {"encrypted": "true"}}]}},
            "/dev/sda1 is not encrypted with a configured KMS key",
        ),
        (
            {"LaunchTemplate": {"blockDeviceMappings": [{"deviceName": "/dev/sda1", "ebs": {"encrypted": "false"}}]}},
            "/dev/sda1 is not encrypted",
        ),
        ({"LaunchTemplate": {"blockDeviceMappings": []}}, "its root volume is not encrypted"),
    ],
    "imdsv2-is-required": [
        ({"LaunchTemplate": {"metadataOptions": {"httpTokens": "optional", "httpPutResponseHopLimit": 1}}}, "IMDSv1"),
        (
            {"LaunchTemplate": {"metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2}}},
            "hop limit",
        ),
    ],
    "no-inbound-from-cidr": [
        ({"SecurityGroupIngressRule": {"cidrIpv4": "0.0.0.0/0"}}, "inbound traffic from 0.0.0.0/0"),
        ({"SecurityGroupIngressRule": {"cidrIpv6": "::/0"}}, "inbound traffic from ::/0"),
        ({"SecurityGroup": {"ingress": [{"fromPort": 22}]}}, "inline ingress rules"),
    ],
    "default-security-groups-are-empty": [
        ({"DefaultSecurityGroup": {"ingress": [{"self": True}]}}, "has ingress rules"),
        ({"DefaultSecurityGroup": {"egress": [{"cidrBlocks": ["0.0.0.0/0"]}]}}, "has egress rules"),
    ],
    "no-public-ip": [
        ({"Subnet": {"mapPublicIpOnLaunch": True}}, "assigns public IP"),
        ({"LaunchTemplate": {"networkInterfaces": [{"associatePublicIpAddress": "true"}]}}, "gets a public IP"),
    ],
    "no-ssh-key-pair": [({"LaunchTemplate": {"keyName": "mine"}}, "SSH key pair")],
    "policies-are-specific": [
        ({"RolePolicy": {"policy": policy({**ALLOW, "Action": ["s3:*"], "Resource": ["arn:x"]})}}, "allows s3:*"),
        ({"RolePolicy": {"policy": policy(ALLOW)}}, "s3:GetObject on every resource"),
    ],
    "only-services-and-roles-assume-roles": [
        ({"Role": {"assumeRolePolicy": policy({"Principal": {"AWS": "*"}})}}, "may assume it"),
        ({"Role": {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}}, "AdministratorAccess"),
    ],
    "roles-have-a-boundary": [
        ({"Role": {"permissionsBoundary": None}}, "no permissions boundary"),
        ({"Role": {"path": "/"}}, "has the path /"),
    ],
    "wildcard-principal-is-limited": [
        ({"BucketPolicy": {"policy": policy({**ALLOW, "Principal": "*"})}}, "Wide allows every AWS account"),
        ({"Key": {"policy": policy({**ALLOW, "Principal": {"AWS": "*"}})}}, "Wide allows every AWS account"),
    ],
    "buckets-block-public-access": [
        ({"BucketPublicAccessBlock": {"blockPublicPolicy": False}}, "blockPublicPolicy is not true")
    ],
    "buckets-require-tls": [({"BucketPolicy": {"policy": policy()}}, "requests without TLS")],
    "keys-rotate": [({"Key": {"enableKeyRotation": False}}, "rotation is disabled")],
    "topics-and-logs-are-encrypted": [
        ({"Topic": {"kmsMasterKeyId": None}}, "kmsMasterKeyId is not set"),
        ({"LogGroup": {"kmsKeyId": None}}, "kmsKeyId is not set"),
    ],
    "resources-are-tagged": [
        ({"Vpc": {"tags": {"Name": "x"}}}, "has no tag trainyard:stack"),
        ({"Group": {"tags": [{"key": "trainyard:stack"}]}}, "has no tag trainyard:role"),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_rule_reports_each_violation(rule: PolicyRule) -> None:
    for changes, expected in VIOLATIONS[rule.name]:
        messages = violations(deployed("a100-cluster"), rule, copy.deepcopy(changes))
        assert any(expected in message for message in messages), (changes, messages)


def test_pack_registers_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """pulumi_policy is installed in a separate environment, so a recorder replaces it."""
    registered: dict[str, Any] = {}
    sdk = SimpleNamespace(
        EnforcementLevel=SimpleNamespace(MANDATORY="mandatory"),
        PolicyPack=lambda **arguments: registered.update(arguments),
        ReportViolation=None,
        ResourceValidationArgs=None,
        ResourceValidationPolicy=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", sdk)
    runpy.run_path(str(ROOT / "infra/policy/__main__.py"), run_name="__main__")
    assert [each.name for each in registered["policies"]] == [rule.name for rule in RULES]
    messages: list[str] = []
    args = SimpleNamespace(resource_type="aws:kms/key:Key", name="key", props={"enableKeyRotation": False})
    for each in registered["policies"]:
        each.validate(args, lambda message, _: messages.append(message))
    assert "key: key rotation is disabled" in messages


def test_rules_import_neither_pulumi_nor_pydantic() -> None:
    program = (
        "import sys; import infra.policy.rules; print([m for m in sys.modules if m.startswith(('pulumi', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
