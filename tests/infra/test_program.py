"""The program as a whole: wiring, settings, tags."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount
from tests.infra.conftest import INSTANCE, ROOT, STACKS, deployed, stack_config
from trainyard.base import InputError
from trainyard.models.manifest import Manifest

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
    "aws:sns/topicPolicy:TopicPolicy",
    "aws:sns/topicSubscription:TopicSubscription",
    "command:local:Command",
}


def tags_of(inputs: Any) -> dict[str, str]:
    tags = inputs.get("tags", {})
    return tags if isinstance(tags, dict) else {tag["key"]: tag["value"] for tag in tags}


def test_everything_that_can_bear_tags_is_found_by_stack_and_role(shipped: Deployment) -> None:
    for resource in shipped.resources.values():
        if resource.custom and resource.type not in UNTAGGED:
            tags = tags_of(resource.inputs)
            assert tags.get("trainyard:stack") == shipped.stack, resource.urn
            assert tags.get("trainyard:role"), resource.urn
            assert tags.get("Name"), resource.urn


def test_users_tags_are_added_for_cost_allocation(changed: Callable[..., Deployment]) -> None:
    run = changed(tags={"team": "research"})
    tags = run.one("aws:ec2/vpc:Vpc", "vpc").inputs["tags"]
    assert tags["team"] == "research"
    assert tags["trainyard:stack"] == "local"
    assert {"key": "team", "value": "research", "propagateAtLaunch": True} in run.one(
        "aws:autoscaling/group:Group", "workers"
    ).inputs["tags"]


def test_every_resource_belongs_to_a_component(shipped: Deployment) -> None:
    components = {resource.urn for resource in shipped.resources.values() if not resource.custom}
    assert all(resource.parent in components for resource in shipped.resources.values() if resource.custom)


def test_manifest_is_valid_and_names_what_was_made(shipped: Deployment) -> None:
    manifest = Manifest.model_validate_json(
        shipped.one("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"]
    )
    assert manifest.stack == shipped.stack
    assert manifest.head.address == shipped.of_type(INSTANCE)[0].outputs["privateIp"]
    groups = {one.outputs["name"] for one in shipped.of_type("aws:autoscaling/group:Group")}
    assert {group.autoscaling_group for group in manifest.groups} == groups
    assert manifest.bundle.uri.endswith(f"/bundle/{manifest.bundle.sha256}.tar.gz")
    assert (manifest.fsx is not None) == (shipped.stack == "a100-cluster")


@pytest.mark.parametrize("stack", STACKS)
def test_preview_with_unknown_values_registers_the_same_resources(stack: str) -> None:
    seen = up(stack_config(stack), stack, ROOT, account=StaticAccount(), preview=True)
    assert seen.resources.keys() == deployed(stack).resources.keys()


def test_launch_waits_for_everything_else(shipped: Deployment) -> None:
    """Its component depends on every other one, so that destroy stops the job before anything goes."""
    launch = shipped.one("trainyard:infra:Launch", "launch")
    others = {
        resource.urn for resource in shipped.resources.values() if resource.custom and resource.parent != launch.urn
    }
    assert others <= launch.dependencies


def test_launch_command_has_no_absolute_path_and_hands_over_the_region(shipped: Deployment) -> None:
    inputs = shipped.one("command:local:Command", "launch").inputs
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

    import infra.packaging.archive

    path, module = list(sys.path), sys.modules["infra.packaging.archive"]
    changed()
    assert sys.path == path
    assert sys.modules["infra.packaging.archive"] is module is infra.packaging.archive


def test_outputs_say_where_things_lie_what_to_type_and_what_it_costs(shipped: Deployment) -> None:
    told = shipped.exports
    assert told["runs_uri"] == f"s3://{told['data_bucket']}/runs/"
    assert told["data_uri"] == f"s3://{told['data_bucket']}/datasets/"
    assert told["commands"].keys() == {"status", "follow", "results", "end_job", "end_all"}
    cost = told["cost"]
    assert cost["hourly_usd"] == pytest.approx(sum(item["hourly_usd"] for item in cost["items"]), abs=0.01)
    assert cost["capped_usd"] == pytest.approx(cost["hourly_usd"] * cost["until_minutes"] / 60, rel=0.02)


def test_commands_of_the_outputs_are_commands_of_ours(local: Deployment) -> None:
    for command in local.exports["commands"].values():
        words = command.split()
        if "trainyard" in words:
            asked = [*words[words.index("trainyard") + 1 :], "--help"]
            done = subprocess.run(
                [sys.executable, "-m", "trainyard", *asked], cwd=ROOT, capture_output=True, check=False
            )
            assert done.returncode == 0, command


def test_nothing_depends_on_the_run_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reservation's end is a fact; how far off it is stands in no input."""

    def inputs(run: Deployment) -> dict[str, str]:
        return {urn: repr({k: v for k, v in r.inputs.items() if k != "source"}) for urn, r in run.resources.items()}

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    config = stack_config("h200-cluster")
    assert inputs(up(config, "h200-cluster", ROOT, account=StaticAccount())) == inputs(deployed("h200-cluster"))


def test_commands_ask_the_account_that_the_program_was_given() -> None:
    config = {**stack_config("local"), "aws:profile": "training"}
    told = up(config, "local", ROOT, account=StaticAccount()).exports["commands"]
    assert told["end_job"] == "AWS_REGION=us-east-1 AWS_PROFILE=training .venv/bin/python -m trainyard stop -s local"
