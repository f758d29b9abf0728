"""Head and workers."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.packaging.user_data import LIMIT_BYTES, user_data
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.static_ec2 import StaticEc2
from tests.infra.conftest import INSTANCE, ROOT, head_of, stack_config, templates_of
from trainyard.base import InputError
from trainyard.config.catalog import catalog


def template_of(run: Deployment) -> dict[str, Any]:
    """Of the group `workers`: what others differ in stands in test_capacity."""
    return dict(next(one for one in templates_of(run) if one.name.startswith("workers-")).inputs)


def test_every_worker_gets_the_interfaces_of_its_cards(shipped: Deployment) -> None:
    settings = stack_config(shipped.stack)["trainyard:cluster"]
    entry = catalog().get(settings["instance_type"])
    assert entry is not None
    efa = settings.get("network", {}).get("efa", entry.efa_interfaces > 0)
    wanted = [("interface", 0, 0)]
    if efa:
        wanted += [("efa-only", card.index, 0 if card.index else 1) for card in entry.network_cards if card.efa]
    for template in templates_of(shipped):
        given = template.inputs["networkInterfaces"]
        assert [(one["interfaceType"], one["networkCardIndex"], one["deviceIndex"]) for one in given] == wanted


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


def test_security_groups_stand_on_each_interface_and_public_addresses_on_none(shipped: Deployment) -> None:
    template = template_of(shipped)
    expected = [
        group.id for group in shipped.of_type("aws:ec2/securityGroup:SecurityGroup") if group.name in ("nodes", "efa")
    ]
    for interface in template["networkInterfaces"]:
        assert sorted(interface["securityGroups"]) == sorted(expected)
        assert "associatePublicIpAddress" not in interface
    assert "vpcSecurityGroupIds" not in template
    assert head_of(shipped)["associatePublicIpAddress"] is False


def test_metadata_service_asks_for_tokens_and_answers_one_hop(shipped: Deployment) -> None:
    for given in (template_of(shipped), head_of(shipped)):
        assert given["metadataOptions"] == {
            "httpEndpoint": "enabled",
            "httpTokens": "required",
            "httpPutResponseHopLimit": 1,
        }


def test_root_volumes_are_encrypted_gp3(shipped: Deployment) -> None:
    worker, head = template_of(shipped)["blockDeviceMappings"][0]["ebs"], head_of(shipped)["rootBlockDevice"]
    assert (worker["encrypted"], worker["volumeType"], worker["deleteOnTermination"]) == ("true", "gp3", "true")
    assert (head["encrypted"], head["volumeType"], head["deleteOnTermination"]) == (True, "gp3", True)
    assert worker["kmsKeyId"] == head["kmsKeyId"] == shipped.one("aws:kms/key:Key", "stack-key").outputs["arn"]


def test_no_key_pair_exists(shipped: Deployment) -> None:
    assert "keyName" not in template_of(shipped)
    assert "keyName" not in head_of(shipped)


def test_whatever_a_launch_makes_is_tagged_in_the_launch_itself(shipped: Deployment) -> None:
    for template in templates_of(shipped):
        tagged = {one["resourceType"]: one["tags"] for one in template.inputs["tagSpecifications"]}
        spot = {"spot-instances-request"} if "instanceMarketOptions" in template.inputs else set()
        if shipped.stack == "h200-cluster":  # a market of its own, without requests
            spot = set()
        assert tagged.keys() == {"instance", "volume", "network-interface"} | spot
        assert all(tags["trainyard:stack"] == shipped.stack for tags in tagged.values())


def test_group_is_empty_and_its_desired_capacity_is_not_pulumis(shipped: Deployment) -> None:
    group = shipped.one("aws:autoscaling/group:Group", "workers")
    assert (group.inputs["minSize"], group.inputs["desiredCapacity"]) == (0, 0)
    assert group.ignore_changes == ("desiredCapacity",)
    assert group.inputs["suspendedProcesses"] == ["AZRebalance"]


def test_group_can_hold_all_nodes_and_bears_with_them_during_bring_up(gpu: Deployment) -> None:
    group = gpu.one("aws:autoscaling/group:Group", "workers").inputs
    assert group["maxSize"] == 4
    assert group["healthCheckGracePeriod"] >= 45 * 60
    assert all(tag["propagateAtLaunch"] for tag in group["tags"])


def test_image_may_drift_without_replacing_anything(shipped: Deployment) -> None:
    assert all(one.ignore_changes == ("imageId",) for one in templates_of(shipped))
    assert shipped.of_type(INSTANCE)[0].ignore_changes == ("ami",)


def test_gpu_nodes_boot_another_image_than_the_head(gpu: Deployment, local: Deployment) -> None:
    assert template_of(gpu)["imageId"] != head_of(gpu)["ami"]
    assert template_of(local)["imageId"] == head_of(local)["ami"]


def test_workers_stand_in_a_cluster_placement_group(gpu: Deployment) -> None:
    group = gpu.one("aws:ec2/placementGroup:PlacementGroup", "cluster")
    assert group.inputs["strategy"] == "cluster"
    assert template_of(gpu)["placement"] == {"groupName": group.outputs["name"]}


def test_placement_group_can_be_declined(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"placement_group": False})
    assert not run.of_type("aws:ec2/placementGroup:PlacementGroup")
    assert "placement" not in template_of(run)


def test_user_data_fits_and_starts_the_bootstrap_at_every_boot(shipped: Deployment) -> None:
    worker = base64.b64decode(template_of(shipped)["userData"]).decode()
    bucket = shipped.exports["staging_bucket"]
    for who, text in (("worker --group workers", worker), ("head", head_of(shipped)["userData"])):
        assert text.startswith("#cloud-config\n")
        assert len(text.encode()) < LIMIT_BYTES
        config = yaml.safe_load(text)
        files = {file["path"]: file["content"] for file in config["write_files"]}
        assert files["/opt/trainyard/bootstrap.py"] == (ROOT / "trainyard/node/bootstrap.py").read_text()
        unit = files["/etc/systemd/system/trainyard-node.service"]
        assert (
            "ExecStart=/usr/bin/python3 /opt/trainyard/bootstrap.py "
            f"--role {who} --manifest s3://{bucket}/manifest.json --region us-east-1\n"
        ) in unit
        assert "WantedBy=multi-user.target" in unit
        assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "--no-block", "trainyard-node.service"]


def test_user_data_that_ec2_would_refuse_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / "trainyard/node").mkdir(parents=True)
    (tmp_path / "trainyard/node/bootstrap.py").write_text("#" * LIMIT_BYTES)
    with pytest.raises(AssertionError, match="shorten trainyard/node/bootstrap"):
        user_data("worker", "workers", "s3://bucket/manifest.json", "us-east-1", tmp_path)


def test_changed_job_leaves_user_data_alone(local: Deployment, changed: Callable[..., Deployment]) -> None:
    other = changed(job={"name": "other", "dataset": "other", "train": {}})
    assert template_of(local)["userData"] == template_of(other)["userData"]


def test_another_family_of_images_is_another_template(changed: Callable[..., Deployment], local: Deployment) -> None:
    """The id of a family is ignored once it is there; the family itself must not be."""
    debian = changed(image="debian-12")
    assert templates_of(debian)[0].urn != templates_of(local)[0].urn
    assert templates_of(debian)[0].inputs["blockDeviceMappings"][0]["deviceName"] == "/dev/xvda"
    assert debian.of_type(INSTANCE)[0].urn != local.of_type(INSTANCE)[0].urn


def test_image_that_the_user_names_is_followed(changed: Callable[..., Deployment]) -> None:
    (template,) = templates_of(changed(image="ami-0123456789abcdef0"))
    assert template.inputs["imageId"] == "ami-0123456789abcdef0"
    assert not template.ignore_changes


def test_image_that_the_root_volume_can_not_hold_is_refused(
    changed: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = StaticEc2.image

    def large(self: StaticEc2, given: Any) -> dict[str, Any]:
        told = answer(self, given)
        told["blockDeviceMappings"][0]["ebs"]["volume_size"] = "120"
        return told

    monkeypatch.setattr(StaticEc2, "image", large)
    with pytest.raises(InputError, match="its root takes 120 GiB, and root_volume_gib is 40"):
        changed(image="ami-0123456789abcdef0")
