"""The policy pack's rules: every shipped stack keeps them, and each is broken once."""

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
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.static_ec2 import SUBNET, VPC
from tests.infra.conftest import ROOT, deployed


def broken(run: Deployment, rule: PolicyRule, changed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a rule says of a graph in which resources of some types have other inputs."""
    found = []
    for one in run.resources.values():
        if one.custom:
            inputs = {**one.inputs, **changed.get(one.type.rpartition(":")[2], {})}
            found += [f"{one.name}: {sentence}" for sentence in rule.check(one.type, inputs)]
    return found


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_every_shipped_stack_keeps_every_rule(shipped: Deployment, rule: PolicyRule) -> None:
    assert broken(shipped, rule, {}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"storage": {"kms_key": "arn:aws:kms:us-east-1:123456789012:key/mine", "bucket": "our-data"}},
        {"network": {"existing": {"vpc_id": VPC, "subnet_id": SUBNET}}},
        {"network": {"nat": False}, "node": {"system": "as-is"}},
        {"capacity": {"spot": {}}, "image": "ami-0123456789abcdef0", "guardrails": {"email": "team@example.com"}},
        {"identity": {"permissions_boundary": "arn:aws:iam::123456789012:policy/boundary"}},
    ],
    ids=["given-key", "existing-network", "closed-network", "spot", "boundary"],
)
def test_other_stacks_keep_every_rule(changed: Callable[..., Deployment], changes: dict[str, Any]) -> None:
    run = changed(**changes)
    assert [sentence for rule in RULES for sentence in broken(run, rule, {})] == []


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


ALLOW = {"Sid": "Wide", "Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
BREAKS: dict[str, list[tuple[dict[str, dict[str, Any]], str]]] = {
    "volumes-are-encrypted": [
        ({"Instance": {"rootBlockDevice": {"encrypted": False}}}, "rootBlockDevice is not encrypted"),
        ({"Instance": {"rootBlockDevice": {"encrypted": True}}}, "under no key"),
        (
            {"LaunchTemplate": {"blockDeviceMappings": [{"deviceName": "/dev/sda1", "ebs": {"encrypted": "false"}}]}},
            "/dev/sda1 is not encrypted",
        ),
        ({"LaunchTemplate": {"blockDeviceMappings": []}}, "its root volume is not encrypted"),
    ],
    "metadata-needs-a-token": [
        ({"Instance": {"metadataOptions": {"httpTokens": "optional", "httpPutResponseHopLimit": 1}}}, "IMDSv1"),
        (
            {"LaunchTemplate": {"metadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2}}},
            "hop limit is not 1",
        ),
    ],
    "nothing-comes-in-from-outside": [
        ({"SecurityGroupIngressRule": {"cidrIpv4": "0.0.0.0/0"}}, "0.0.0.0/0 may come in"),
        ({"SecurityGroupIngressRule": {"cidrIpv6": "::/0"}}, "::/0 may come in"),
        ({"SecurityGroup": {"ingress": [{"fromPort": 22}]}}, "stand in the group itself"),
    ],
    "nothing-has-a-public-address": [
        ({"Instance": {"associatePublicIpAddress": True}}, "may get a public address"),
        ({"Subnet": {"mapPublicIpOnLaunch": True}}, "get a public address"),
        ({"LaunchTemplate": {"networkInterfaces": [{"associatePublicIpAddress": "true"}]}}, "gets a public address"),
    ],
    "no-key-pair-is-named": [({"LaunchTemplate": {"keyName": "mine"}}, "reached by SSH")],
    "policies-name-what-they-allow": [
        ({"RolePolicy": {"policy": policy({**ALLOW, "Action": ["s3:*"], "Resource": ["arn:x"]})}}, "allows s3:*"),
        ({"RolePolicy": {"policy": policy(ALLOW)}}, "s3:GetObject on every resource"),
    ],
    "roles-are-taken-on-by-services": [
        ({"Role": {"assumeRolePolicy": policy({"Principal": {"AWS": "*"}})}}, "may take it on"),
        ({"Role": {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}}, "AdministratorAccess"),
    ],
    "everyone-is-someone-of-the-account": [
        ({"BucketPolicy": {"policy": policy({**ALLOW, "Principal": "*"})}}, "Wide allows everyone"),
        ({"Key": {"policy": policy({**ALLOW, "Principal": {"AWS": "*"}})}}, "Wide allows everyone"),
    ],
    "buckets-are-private": [({"BucketPublicAccessBlock": {"blockPublicPolicy": False}}, "blockPublicPolicy is not on")],
    "buckets-speak-tls-only": [({"BucketPolicy": {"policy": policy()}}, "plain HTTP is not denied")],
    "keys-rotate": [({"Key": {"enableKeyRotation": False}}, "does not rotate")],
    "topics-and-logs-are-encrypted": [
        ({"Topic": {"kmsMasterKeyId": None}}, "kmsMasterKeyId names no key"),
        ({"LogGroup": {"kmsKeyId": None}}, "kmsKeyId names no key"),
    ],
    "all-is-found-by-tags": [
        ({"Vpc": {"tags": {"Name": "x"}}}, "bears no tag trainyard:stack"),
        ({"Group": {"tags": [{"key": "trainyard:stack"}]}}, "bears no tag trainyard:role"),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_every_rule_is_broken_by_what_it_forbids(rule: PolicyRule) -> None:
    for changed, told in BREAKS[rule.name]:
        said = broken(deployed("a100-cluster"), rule, copy.deepcopy(changed))
        assert any(told in sentence for sentence in said), (changed, said)


def test_pack_offers_every_rule_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's SDK for packs has an environment of its own: here it is a recorder."""
    offered: dict[str, Any] = {}
    sdk = SimpleNamespace(
        EnforcementLevel=SimpleNamespace(MANDATORY="mandatory"),
        PolicyPack=lambda **given: offered.update(given),
        ReportViolation=None,
        ResourceValidationArgs=None,
        ResourceValidationPolicy=SimpleNamespace,
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", sdk)
    runpy.run_path(str(ROOT / "infra/policy/__main__.py"), run_name="__main__")
    assert [one.name for one in offered["policies"]] == [rule.name for rule in RULES]
    said: list[str] = []
    args = SimpleNamespace(resource_type="aws:kms/key:Key", name="key", props={"enableKeyRotation": False})
    for one in offered["policies"]:
        one.validate(args, lambda sentence, _: said.append(sentence))
    assert "key: the key does not rotate" in said


def test_rules_need_nothing_that_the_packs_environment_lacks() -> None:
    program = (
        "import sys; import infra.policy.rules; print([m for m in sys.modules if m.startswith(('pulumi', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
