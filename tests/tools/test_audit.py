"""The audit's plans of resources, and the comparison of findings with the accepted ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment
from tests.infra.conftest import deployed
from tools.audit.__main__ import STACKS
from tools.audit.findings import Accepted, Finding, bandit_findings, checkov_findings, compare, read_accepted
from tools.audit.plan import TYPES, plan_of


@pytest.fixture(scope="module")
def local() -> Deployment:
    return deployed("local")


def planned(run: Deployment, kind: str, name: str) -> dict[str, Any]:
    """Return the planned values of a resource."""
    resources = plan_of(run)["planned_values"]["root_module"]["resources"]
    (values,) = [each["values"] for each in resources if each["address"] == f"{kind}.{name}"]
    return dict(values)


def test_the_stacks_have_all_types_of_resources() -> None:
    kinds = {resource.type for stack in STACKS for resource in deployed(stack).resources.values()}
    assert set(TYPES) - kinds == {"aws:sns/topicSubscription:TopicSubscription"}  # only with guardrails.email


def test_a_plan_contains_every_aws_resource(local: Deployment) -> None:
    expected = [each for each in local.resources.values() if each.custom and each.type.startswith("aws:")]
    plan = plan_of(local)
    for resources in (plan["planned_values"]["root_module"]["resources"], plan["resource_changes"]):
        assert len({each["address"] for each in resources}) == len(expected)
    json.dumps(plan)


def test_arguments_have_the_names_and_blocks_of_terraform(local: Deployment) -> None:
    assert planned(local, "aws_kms_key", "key-stack-key")["enable_key_rotation"] is True
    template = planned(local, "aws_launch_template", "workers-ubuntu-24.04")
    assert template["metadata_options"][0]["http_tokens"] == "required"
    assert planned(local, "aws_vpc", "network-vpc")["tags"]["trainyard:stack"] == "trainyard/local"
    encryption = planned(local, "aws_s3_bucket_server_side_encryption_configuration", "data")["rule"][0]
    assert encryption["apply_server_side_encryption_by_default"][0]["sse_algorithm"] == "aws:kms"


def test_a_plan_connects_a_bucket_and_its_settings(local: Deployment) -> None:
    configured = {each["address"]: each for each in plan_of(local)["configuration"]["root_module"]["resources"]}
    references = configured["aws_s3_bucket_policy.staging"]["expressions"]["bucket"]["references"]
    assert "aws_s3_bucket.trainyard-staging" in references


def test_a_plan_that_checkov_does_not_read_is_an_error() -> None:
    report = {"summary": {"resource_count": 0}, "results": {"failed_checks": []}}
    with pytest.raises(ValueError, match="has read 0 resources, but the plans have 1"):
        list(checkov_findings(json.dumps(report), ["aws_vpc.network-vpc"]))


def test_a_file_that_bandit_does_not_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="bandit"):
        list(bandit_findings(json.dumps({"errors": [{"filename": "x.py"}], "results": []})))


def test_a_new_finding_and_an_unused_acceptance_are_reported() -> None:
    findings = [Finding("A", "file.py", "line 1: old"), Finding("A", "new.py", "line 2: new")]
    accepted = [Accepted("A", ("file.py",), "a reason"), Accepted("B", ("gone-*",), "a reason")]
    assert compare(findings, accepted) == [
        "A new.py: line 2: new",
        "B gone-*: accepted in accepted.yaml, but not reported",
    ]


def test_accepted_findings_have_reasons(tmp_path: Path) -> None:
    assert read_accepted()
    file = tmp_path / "accepted.yaml"
    file.write_text("[{check: A, places: [x], reason: ''}]")
    with pytest.raises(ValueError, match="A has no reason"):
        read_accepted(file)
