"""Head and workers."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.userdata import LIMIT_BYTES, user_data
from rehearsal.adapter.graph import Deployment
from tests.infra.conftest import ROOT


def template_of(run: Deployment) -> dict[str, Any]:
    return dict(run.one("aws:ec2/launchTemplate:LaunchTemplate", "workers").inputs)


def head_of(run: Deployment) -> dict[str, Any]:
    return dict(run.one("aws:ec2/instance:Instance", "head").inputs)


def test_p4d_gets_a_plain_primary_and_one_efa_on_each_card(gpu: Deployment) -> None:
    layout = [
        (each["networkCardIndex"], each["deviceIndex"], each["interfaceType"])
        for each in template_of(gpu)["networkInterfaces"]
    ]
    assert layout == [
        (0, 0, "interface"),
        (0, 1, "efa-only"),
        (1, 0, "efa-only"),
        (2, 0, "efa-only"),
        (3, 0, "efa-only"),
    ]


def test_cpu_nodes_get_one_plain_interface(local: Deployment) -> None:
    assert [each["interfaceType"] for each in template_of(local)["networkInterfaces"]] == ["interface"]


def test_security_groups_stand_on_each_interface_and_public_addresses_on_none(each: Deployment) -> None:
    template = template_of(each)
    expected = [group.id for group in each.of_type("aws:ec2/securityGroup:SecurityGroup") if group.name != "fsx"]
    for interface in template["networkInterfaces"]:
        assert sorted(interface["securityGroups"]) == sorted(expected)
        assert "associatePublicIpAddress" not in interface
    assert "vpcSecurityGroupIds" not in template
    assert head_of(each)["associatePublicIpAddress"] is False


def test_metadata_service_asks_for_tokens_and_answers_one_hop(each: Deployment) -> None:
    for given in (template_of(each), head_of(each)):
        assert given["metadataOptions"] == {
            "httpEndpoint": "enabled",
            "httpTokens": "required",
            "httpPutResponseHopLimit": 1,
        }


def test_root_volumes_are_encrypted_gp3(each: Deployment) -> None:
    worker, head = template_of(each)["blockDeviceMappings"][0]["ebs"], head_of(each)["rootBlockDevice"]
    assert (worker["encrypted"], worker["volumeType"], worker["deleteOnTermination"]) == ("true", "gp3", "true")
    assert (head["encrypted"], head["volumeType"], head["deleteOnTermination"]) == (True, "gp3", True)


def test_no_key_pair_exists(each: Deployment) -> None:
    assert "keyName" not in template_of(each)
    assert "keyName" not in head_of(each)


def test_whatever_a_launch_makes_is_tagged_in_the_launch_itself(each: Deployment) -> None:
    tagged = {each["resourceType"]: each["tags"] for each in template_of(each)["tagSpecifications"]}
    assert tagged.keys() == {"instance", "volume", "network-interface"}
    assert all(tags["trainyard:stack"] == each.stack for tags in tagged.values())


def test_group_is_empty_and_its_desired_capacity_is_not_pulumis(each: Deployment) -> None:
    group = each.one("aws:autoscaling/group:Group", "workers")
    assert (group.inputs["minSize"], group.inputs["desiredCapacity"]) == (0, 0)
    assert group.ignore_changes == ("desiredCapacity",)
    assert group.inputs["suspendedProcesses"] == ["AZRebalance"]


def test_group_can_hold_all_nodes_and_bears_with_them_during_bring_up(gpu: Deployment) -> None:
    group = gpu.one("aws:autoscaling/group:Group", "workers").inputs
    assert group["maxSize"] == 4
    assert group["healthCheckGracePeriod"] >= 45 * 60
    assert all(tag["propagateAtLaunch"] for tag in group["tags"])


def test_image_may_drift_without_replacing_anything(each: Deployment) -> None:
    assert each.one("aws:ec2/launchTemplate:LaunchTemplate", "workers").ignore_changes == ("imageId",)
    assert each.one("aws:ec2/instance:Instance", "head").ignore_changes == ("ami",)


def test_gpu_nodes_boot_another_image_than_the_head(gpu: Deployment, local: Deployment) -> None:
    assert template_of(gpu)["imageId"] != head_of(gpu)["ami"]
    assert template_of(local)["imageId"] == head_of(local)["ami"]


def test_workers_stand_in_a_cluster_placement_group(each: Deployment) -> None:
    group = each.one("aws:ec2/placementGroup:PlacementGroup", "cluster")
    assert group.inputs["strategy"] == "cluster"
    assert template_of(each)["placement"] == {"groupName": group.outputs["name"]}


def test_placement_group_can_be_declined(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"placement_group": False})
    assert not run.of_type("aws:ec2/placementGroup:PlacementGroup")
    assert "placement" not in template_of(run)


def test_user_data_fits_and_starts_the_bootstrap_at_every_boot(each: Deployment) -> None:
    worker = base64.b64decode(template_of(each)["userData"]).decode()
    bucket = each.exports["staging_bucket"]
    for role, text in (("worker", worker), ("head", head_of(each)["userData"])):
        assert text.startswith("#cloud-config\n")
        assert len(text.encode()) < LIMIT_BYTES
        config = yaml.safe_load(text)
        files = {file["path"]: file["content"] for file in config["write_files"]}
        assert files["/opt/trainyard/bootstrap.py"] == (ROOT / "fleet/bootstrap.py").read_text()
        unit = files["/etc/systemd/system/trainyard-node.service"]
        assert (
            "ExecStart=/usr/bin/python3 /opt/trainyard/bootstrap.py "
            f"--role {role} --manifest s3://{bucket}/manifest.json --region us-east-1\n"
        ) in unit
        assert "WantedBy=multi-user.target" in unit
        assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "--no-block", "trainyard-node.service"]


def test_user_data_that_ec2_would_refuse_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet/bootstrap.py").write_text("#" * LIMIT_BYTES)
    with pytest.raises(AssertionError, match="shorten fleet/bootstrap"):
        user_data("worker", "s3://bucket/manifest.json", "us-east-1", tmp_path)


def test_changed_job_leaves_user_data_alone(local: Deployment, changed: Callable[..., Deployment]) -> None:
    other = changed(job={"name": "other", "dataset": "other", "train": {}})
    assert template_of(local)["userData"] == template_of(other)["userData"]


def policy_of(run: Deployment, role: str) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(run.one("aws:iam/rolePolicy:RolePolicy", role).inputs["policy"])[
        "Statement"
    ]
    return statements


@pytest.mark.parametrize("role", ["head", "workers"])
def test_no_statement_allows_all_actions(each: Deployment, role: str) -> None:
    for statement in policy_of(each, role):
        assert not any("*" in action for action in statement["Action"]), statement


# What Session Manager's agent asks for.
SESSIONS = ("ssm:UpdateInstanceInformation", "ssmmessages:")


def test_only_describing_and_sessions_reach_beyond_the_stack(each: Deployment) -> None:
    for role in ("head", "workers"):
        for statement in policy_of(each, role):
            if "*" in statement["Resource"] and "Condition" not in statement:
                beyond = [action for action in statement["Action"] if ":Describe" not in action]
                assert all(action.startswith(SESSIONS) for action in beyond), statement


def test_roles_have_no_policies_beside_their_own(each: Deployment) -> None:
    """AWS's own policies are broad, and change when AWS likes."""
    for role in each.of_type("aws:iam/role:Role"):
        assert not {"managedPolicyArns", "inlinePolicies"} & set(role.inputs)
    assert not each.of_type("aws:iam/rolePolicyAttachment:RolePolicyAttachment")


def test_head_may_change_the_groups_of_its_own_stack_only(each: Deployment) -> None:
    statement = next(each for each in policy_of(each, "head") if "autoscaling:SetDesiredCapacity" in each["Action"])
    assert statement["Condition"] == {"StringEquals": {"aws:ResourceTag/trainyard:stack": each.stack}}


def test_workers_write_to_runs_only(each: Deployment) -> None:
    data = f"arn:aws:s3:::{each.exports['data_bucket']}"
    writes = [each for each in policy_of(each, "workers") if "s3:PutObject" in each["Action"]]
    assert [each["Resource"] for each in writes] == [[f"{data}/runs/*"]]


def test_workers_read_the_named_secrets_only(local: Deployment, changed: Callable[..., Deployment]) -> None:
    assert not any("ssm:GetParameter" in each["Action"] for each in policy_of(local, "workers"))
    run = changed(job={"name": "a", "dataset": "d", "train": {}, "secrets": {"TOKEN": "/team/token"}})
    statement = next(each for each in policy_of(run, "workers") if "ssm:GetParameter" in each["Action"])
    assert statement["Resource"] == ["arn:aws:ssm:us-east-1:123456789012:parameter/team/token"]


def test_every_node_leaves_through_the_hook(each: Deployment) -> None:
    hook, group = each.one("aws:autoscaling/lifecycleHook:LifecycleHook", "workers-leave"), each.exports["groups"]
    assert hook.inputs["autoscalingGroupName"] == group[0]
    assert hook.inputs["lifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    assert (hook.inputs["heartbeatTimeout"], hook.inputs["defaultResult"]) == (120, "CONTINUE")
