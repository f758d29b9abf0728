"""The program as a whole: wiring, settings, tags."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.base import InputError
from contract.manifest import Manifest
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount
from tests.infra.conftest import ROOT, STACKS, stack_config

# What AWS gives no tags.
UNTAGGED = {
    "aws:autoscaling/lifecycleHook:LifecycleHook",
    "aws:ec2/route:Route",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:iam/rolePolicy:RolePolicy",
    "aws:s3/bucketVersioning:BucketVersioning",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    "aws:s3/bucketPolicy:BucketPolicy",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
    "command:local:Command",
}


def tags_of(inputs: Any) -> dict[str, str]:
    tags = inputs.get("tags", {})
    return tags if isinstance(tags, dict) else {tag["key"]: tag["value"] for tag in tags}


def test_everything_that_can_bear_tags_is_found_by_stack_and_role(each: Deployment) -> None:
    for resource in each.resources.values():
        if resource.custom and resource.type not in UNTAGGED:
            tags = tags_of(resource.inputs)
            assert tags.get("trainyard:stack") == each.stack, resource.urn
            assert tags.get("trainyard:role"), resource.urn
            assert tags.get("Name"), resource.urn


def test_users_tags_are_added_and_never_replace_ours(changed: Callable[..., Deployment]) -> None:
    run = changed(tags={"team": "research", "trainyard:stack": "another"})
    tags = run.one("aws:ec2/vpc:Vpc", "vpc").inputs["tags"]
    assert tags["team"] == "research"
    assert tags["trainyard:stack"] == "local"


def test_every_resource_belongs_to_a_component(each: Deployment) -> None:
    components = {resource.urn for resource in each.resources.values() if not resource.custom}
    assert all(resource.parent in components for resource in each.resources.values() if resource.custom)


def test_manifest_is_valid_and_names_what_was_made(each: Deployment) -> None:
    manifest = Manifest.model_validate_json(
        each.one("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"]
    )
    assert manifest.stack == each.stack
    assert manifest.head.address == each.one("aws:ec2/instance:Instance", "head").outputs["privateIp"]
    assert manifest.groups[0].autoscaling_group == each.one("aws:autoscaling/group:Group", "workers").outputs["name"]
    assert manifest.bundle.uri.endswith(f"/bundle/{manifest.bundle.sha256}.tar.gz")
    assert (manifest.fsx is not None) == (each.stack == "a100-cluster")


@pytest.mark.parametrize("stack", STACKS)
def test_preview_with_unknown_values_registers_the_same_resources(stack: str, request: pytest.FixtureRequest) -> None:
    full = request.getfixturevalue({"local": "local", "a100-cluster": "gpu"}[stack])
    config = ROOT / "stacks" / f"Pulumi.{stack}.yaml"
    seen = up(config, stack, ROOT, account=StaticAccount(), preview=True)
    assert seen.resources.keys() == full.resources.keys()


def test_launch_waits_for_everything_else(each: Deployment) -> None:
    """Its component depends on every other one, so that destroy stops the job before anything goes."""
    launch = each.one("trainyard:infra:Launch", "launch")
    others = {resource.urn for resource in each.resources.values() if resource.custom and resource.parent != launch.urn}
    assert others <= launch.dependencies


def test_launch_command_has_no_absolute_path_and_hands_over_the_region(each: Deployment) -> None:
    inputs = each.one("command:local:Command", "launch").inputs
    assert str(ROOT) not in json.dumps(inputs)
    assert inputs["environment"] == {"AWS_REGION": "us-east-1"}
    assert inputs["addPreviousOutputInEnv"] is False


def test_changed_job_is_another_launch(local: Deployment, changed: Callable[..., Deployment]) -> None:
    job = stack_config("local")["trainyard:cluster"]["job"]
    other = changed(job={**job, "train": {**job["train"], "steps": 61}})
    commands = [run.one("command:local:Command", "launch").inputs for run in (local, other)]
    assert commands[0]["update"] != commands[1]["update"]
    assert commands[0]["delete"] == commands[1]["delete"]


def test_a_changed_launch_is_never_a_replaced_one(local: Deployment) -> None:
    """A replacement would stop the run first, also one that only wants more nodes."""
    inputs = local.one("command:local:Command", "launch").inputs
    assert "triggers" not in inputs
    assert inputs["update"] == f"{inputs['create']} --update"


def test_same_program_twice_registers_equal_inputs(local: Deployment, changed: Callable[..., Deployment]) -> None:
    """No clock, no random name, no order of the disk in any input: an unchanged tree is an unchanged stack."""

    def inputs(run: Deployment) -> dict[str, str]:
        return {urn: repr({k: v for k, v in r.inputs.items() if k != "source"}) for urn, r in run.resources.items()}

    assert inputs(local) == inputs(changed())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nodez": 2}, "nodez"),
        ({"nodes": "two"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"instance_type": "p9.huge"}, "p9.huge"),
        ({"network": {"efa": True}}, "bears no Elastic Fabric Adapter"),
        ({"network": {"cidr": "10.0.0.0/28"}}, "10.0.0.0/28"),
        ({"network": {"zone": "us-east-1z"}}, "us-east-1z"),
    ],
)
def test_bad_settings_end_with_their_message_before_anything_is_made(
    changed: Callable[..., Deployment], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        changed(**changes)


def test_absent_settings_end_with_a_message() -> None:
    with pytest.raises(InputError, match="trainyard:cluster"):
        up({"aws:region": "us-east-1"}, "local", ROOT, account=StaticAccount())


def test_run_leaves_path_and_modules_as_they_were(tmp_path: Path, changed: Callable[..., Deployment]) -> None:
    import sys

    import infra.archive

    path, module = list(sys.path), sys.modules["infra.archive"]
    changed()
    assert sys.path == path
    assert sys.modules["infra.archive"] is module is infra.archive
