"""The program as a whole: wiring, settings, tags."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import GROUP, ROOT, STACKS, deployed
from tools.stack_files import read_stack_file
from trainyard.errors import InputError
from trainyard.models.manifest import Manifest
from trainyard.models.run import NO_RUN

# Resource types without tags.
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


def test_every_taggable_resource_has_stack_and_role_tags(shipped: Deployment) -> None:
    for resource in shipped.resources.values():
        if resource.custom and resource.type not in UNTAGGED:
            tags = tags_of(resource.inputs)
            assert tags.get("trainyard:stack") == f"trainyard/{shipped.stack}", resource.urn
            assert tags.get("trainyard:role"), resource.urn
            assert tags.get("Name"), resource.urn


def test_users_tags_are_added_for_cost_allocation(changed: Callable[..., Deployment]) -> None:
    run = changed(tags={"team": "research"})
    tags = run.resource("aws:ec2/vpc:Vpc", "network-vpc").inputs["tags"]
    assert tags["team"] == "research"
    assert tags["trainyard:stack"] == "trainyard/local"
    assert {"key": "team", "value": "research", "propagateAtLaunch": True} in run.resource(GROUP, "workers").inputs[
        "tags"
    ]


def test_every_resource_belongs_to_a_component(shipped: Deployment) -> None:
    components = {resource.urn for resource in shipped.resources.values() if not resource.custom}
    assert all(resource.parent in components for resource in shipped.resources.values() if resource.custom)


def test_manifest_is_valid_and_names_the_resources(shipped: Deployment) -> None:
    manifest = Manifest.model_validate_json(
        shipped.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"]
    )
    assert manifest.stack == shipped.stack
    groups = {each.name: each.outputs["name"] for each in shipped.resources_of_type(GROUP)}
    assert {group.name: group.autoscaling_group for group in manifest.groups} | {
        "head": manifest.head_autoscaling_group
    } == groups
    assert manifest.bundle.uri.endswith(f"/bundle/{manifest.bundle.sha256}.tar")
    assert (manifest.fsx is not None) == (shipped.stack == "a100-cluster")


@pytest.mark.parametrize("stack", STACKS)
def test_preview_with_unknown_values_registers_the_same_resources(stack: str) -> None:
    previewed = up(read_stack_file(stack), stack, ROOT, account=StaticAccount(), preview=True)
    assert previewed.resources.keys() == deployed(stack).resources.keys()


def test_launch_waits_for_everything_that_the_job_uses(shipped: Deployment) -> None:
    """The launch depends on every component except the guardrails, so that destroy stops the job first."""
    launch = shipped.resource("trainyard:infra:Launch", "launch")
    independent = {launch.urn, shipped.resource("trainyard:infra:Guardrails", "guardrails").urn}
    others = {
        resource.urn
        for resource in shipped.resources.values()
        if resource.custom and resource.parent not in independent
    }
    assert others <= launch.dependencies


def test_launch_command_has_no_absolute_path_and_hands_over_the_region(shipped: Deployment) -> None:
    inputs = shipped.resource("command:local:Command", "launch").inputs
    assert str(ROOT) not in json.dumps(inputs)
    assert inputs["environment"] == {"AWS_REGION": "us-east-1"}
    assert inputs["addPreviousOutputInEnv"] is False


def test_changed_job_is_another_launch(local: Deployment, changed: Callable[..., Deployment]) -> None:
    job = read_stack_file("local")["trainyard:cluster"]["job"]
    other = changed(job={**job, "train": {**job["train"], "steps": 61}})
    commands = [run.resource("command:local:Command", "launch").inputs for run in (local, other)]
    assert commands[0]["update"] != commands[1]["update"]
    assert commands[0]["delete"] == commands[1]["delete"]


def test_changed_launch_is_updated_not_replaced(local: Deployment) -> None:
    """A replacement would stop the run, even if only nodes were added."""
    inputs = local.resource("command:local:Command", "launch").inputs
    assert (inputs["triggers"], inputs["update"]) == ([NO_RUN, ""], f"{inputs['create']} --update")


def test_replaced_launch_stops_the_run_first(local: Deployment) -> None:
    assert local.resource("command:local:Command", "launch").delete_before_replace


def test_same_program_twice_registers_equal_inputs(local: Deployment, changed: Callable[..., Deployment]) -> None:
    """Inputs contain no time, random name or directory order."""

    def inputs(run: Deployment) -> dict[str, str]:
        return {urn: repr({k: v for k, v in r.inputs.items() if k != "source"}) for urn, r in run.resources.items()}

    assert inputs(local) == inputs(changed())


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"nodez": 2}, "nodez"),
        ({"nodes": "two"}, "nodes"),
        ({"nodes": 0}, "nodes"),
        ({"instance_type": "p9.huge"}, "p9.huge"),
        ({"network": {"efa": True}}, "Elastic Fabric Adapter"),
        ({"network": {"cidr": "10.0.0.0/28"}}, "10.0.0.0/28"),
        ({"capacity": {"zones": ["us-east-1z"]}}, "us-east-1z"),
    ],
)
def test_invalid_settings_are_refused(changed: Callable[..., Deployment], changes: dict[str, Any], fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        changed(**changes)


def test_missing_settings_are_refused() -> None:
    with pytest.raises(InputError, match="trainyard:cluster"):
        up({"aws:region": "us-east-1"}, "local", ROOT, account=StaticAccount())


def test_run_restores_path_and_modules(tmp_path: Path, changed: Callable[..., Deployment]) -> None:
    import sys

    import infra.packaging.archive

    path, module = list(sys.path), sys.modules["infra.packaging.archive"]
    changed()
    assert sys.path == path
    assert sys.modules["infra.packaging.archive"] is module is infra.packaging.archive


def test_outputs_have_uris_commands_and_cost(shipped: Deployment) -> None:
    outputs = shipped.exports
    assert outputs["runs_uri"] == f"s3://{outputs['data_bucket']}/runs/"
    assert outputs["data_uri"] == f"s3://{outputs['data_bucket']}/datasets/"
    assert outputs["commands"].keys() == {"run", "status", "logs", "results", "stop", "destroy"}
    cost = outputs["cost"]
    assert cost["usd_per_hour"] == pytest.approx(sum(item["usd_per_hour"] for item in cost["items"]), abs=0.01)
    assert cost["max_run_usd"] == pytest.approx(cost["usd_per_hour"] * cost["time_limit_minutes"] / 60, rel=0.02)


def test_exported_commands_exist(local: Deployment) -> None:
    for command in local.exports["commands"].values():
        arguments = command.split()
        if "trainyard" in arguments:
            options = [*arguments[arguments.index("trainyard") + 1 :], "--help"]
            done = subprocess.run(
                [sys.executable, "-m", "trainyard", *options], cwd=ROOT, capture_output=True, check=False
            )
            assert done.returncode == 0, command


def test_inputs_do_not_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs contain the end time of a reservation, not the remaining time."""

    def inputs(run: Deployment) -> dict[str, str]:
        return {urn: repr({k: v for k, v in r.inputs.items() if k != "source"}) for urn, r in run.resources.items()}

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    config = read_stack_file("h200-cluster")
    assert inputs(up(config, "h200-cluster", ROOT, account=StaticAccount())) == inputs(deployed("h200-cluster"))


def test_commands_use_the_configured_profile() -> None:
    config = {**read_stack_file("local"), "aws:profile": "training"}
    exported = up(config, "local", ROOT, account=StaticAccount()).exports["commands"]
    assert exported["stop"] == "AWS_REGION=us-east-1 AWS_PROFILE=training trainyard stop -s local"
