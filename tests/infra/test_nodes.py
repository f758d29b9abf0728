"""Head and workers."""

import base64
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.lookups.image import earlier_periods
from infra.packaging.user_data import LIMIT_BYTES, user_data
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.static_ec2 import StaticEc2
from tests.infra.conftest import GROUP, ROOT, head_template_of, templates_of
from tests.infra.test_capacity import manifest_of
from tests.problems import rejects
from tools.stack_files import read_stack_file
from trainyard.config.catalog import catalog

SECURITY_GROUP = "aws:ec2/securityGroup:SecurityGroup"


def template_of(run: Deployment) -> dict[str, Any]:
    """Return the launch template of the group `workers`."""
    return dict(next(each for each in templates_of(run) if each.name.startswith("workers-")).inputs)


def head_of(run: Deployment) -> dict[str, Any]:
    """Return the launch template of the head."""
    return dict(head_template_of(run).inputs)


def test_workers_have_the_interfaces_of_the_instance_type(shipped: Deployment) -> None:
    settings = read_stack_file(shipped.stack)["trainyard:cluster"]
    entry = catalog().get(settings["instance_type"])
    assert entry is not None
    efa = settings.get("network", {}).get("efa", entry.efa_interfaces > 0)
    expected = [("interface", 0, 0)]
    if efa:
        expected += [("efa-only", card.index, 0 if card.index else 1) for card in entry.network_cards if card.efa]
    for template in templates_of(shipped):
        interfaces = template.inputs["networkInterfaces"]
        assert [
            (each["interfaceType"], each["networkCardIndex"], each["deviceIndex"]) for each in interfaces
        ] == expected


def test_p4d_has_a_primary_and_an_efa_interface_per_card(gpu: Deployment) -> None:
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


def test_cpu_nodes_have_one_interface(local: Deployment) -> None:
    assert [each["interfaceType"] for each in template_of(local)["networkInterfaces"]] == ["interface"]


def test_interfaces_have_security_groups_and_no_public_ip(shipped: Deployment) -> None:
    template = template_of(shipped)
    expected = [
        group.id
        for group in shipped.resources_of_type(SECURITY_GROUP)
        if group.name in ("security-nodes", "security-efa")
    ]
    for interface in template["networkInterfaces"]:
        assert sorted(interface["securityGroups"]) == sorted(expected)
        assert "associatePublicIpAddress" not in interface
    assert "vpcSecurityGroupIds" not in template
    (interface,) = head_of(shipped)["networkInterfaces"]
    assert interface["associatePublicIpAddress"] == "false"
    assert interface["securityGroups"] == [shipped.resource(SECURITY_GROUP, "security-head").id]


def test_metadata_service_requires_imdsv2_with_one_hop(shipped: Deployment) -> None:
    for inputs in (template_of(shipped), head_of(shipped)):
        assert inputs["metadataOptions"] == {
            "httpEndpoint": "enabled",
            "httpTokens": "required",
            "httpPutResponseHopLimit": 1,
        }


def test_root_volumes_are_encrypted_gp3(shipped: Deployment) -> None:
    for inputs in (template_of(shipped), head_of(shipped)):
        volume = inputs["blockDeviceMappings"][0]["ebs"]
        assert (volume["encrypted"], volume["volumeType"], volume["deleteOnTermination"]) == ("true", "gp3", "true")
        assert volume["kmsKeyId"] == shipped.resource("aws:kms/key:Key", "key-stack-key").outputs["arn"]


def test_root_volumes_of_gpu_nodes_have_more_throughput(local: Deployment, gpu: Deployment) -> None:
    throughputs = [template_of(run)["blockDeviceMappings"][0]["ebs"]["throughput"] for run in (local, gpu)]
    assert throughputs == [125, 500]


def test_no_key_pair_exists(shipped: Deployment) -> None:
    assert "keyName" not in template_of(shipped)
    assert "keyName" not in head_of(shipped)


def test_launch_tags_every_resource_that_it_creates(shipped: Deployment) -> None:
    for template in (head_template_of(shipped), *templates_of(shipped)):
        tagged = {each["resourceType"]: each["tags"] for each in template.inputs["tagSpecifications"]}
        spot = {"spot-instances-request"} if template.name.startswith("spot-") else set()
        assert tagged.keys() == {"instance", "volume", "network-interface"} | spot
        assert all(tags["trainyard:stack"] == f"trainyard/{shipped.stack}" for tags in tagged.values())


def test_group_is_created_empty_and_without_a_desired_capacity(shipped: Deployment) -> None:
    group = shipped.resource(GROUP, "workers")
    assert group.inputs["minSize"] == 0
    assert "desiredCapacity" not in group.inputs  # otherwise a replaced group would start with a refreshed value
    assert group.ignore_changes == ("vpcZoneIdentifiers",)
    assert group.inputs["suspendedProcesses"] == ["AZRebalance"]


def test_group_size_and_grace_period_allow_a_boot(gpu: Deployment) -> None:
    group = gpu.resource(GROUP, "workers").inputs
    assert (group["maxSize"], manifest_of(gpu).groups[0].max_size) == (4, 4)
    assert group["healthCheckGracePeriod"] == 600
    assert all(tag["propagateAtLaunch"] for tag in group["tags"])


def test_several_nodes_of_a_large_group_are_replaced_at_the_same_time(changed: Callable[..., Deployment]) -> None:
    assert manifest_of(changed("custom-job", nodes=16)).groups[0].max_size == 18


def test_head_is_the_only_instance_of_its_group(shipped: Deployment) -> None:
    group, template = shipped.resource(GROUP, "head").inputs, head_template_of(shipped)
    assert (group["minSize"], group["maxSize"], group["healthCheckType"]) == (1, 1, "EC2")
    assert group["launchTemplate"] == {"id": template.id, "version": "1"}
    assert group["vpcZoneIdentifiers"] == [shipped.resource("aws:ec2/subnet:Subnet", "network-private").id]
    assert "instanceMarketOptions" not in template.inputs


def test_new_template_replaces_the_head(shipped: Deployment) -> None:
    refresh = shipped.resource(GROUP, "head").inputs["instanceRefresh"]
    assert refresh["preferences"]["minHealthyPercentage"] == 0  # with one instance, any other value is not reachable


def test_head_is_deleted_before_its_subnet(shipped: Deployment) -> None:
    assert shipped.resource(GROUP, "head").delete_before_replace


def test_worker_images_are_pinned_to_a_release(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[..., Deployment]
) -> None:
    """The newest AMI has another kernel and other drivers every few weeks."""
    lookups: list[Any] = []
    original = StaticEc2.image

    def image(self: StaticEc2, arguments: Any) -> dict[str, Any]:
        lookups.append(arguments)
        return original(self, arguments)

    monkeypatch.setattr(StaticEc2, "image", image)
    changed("a100-cluster")
    _, workers = lookups
    assert workers["filters"][0]["values"] == ["Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260724"]
    assert workers["owners"]
    assert workers["includeDeprecated"]


def test_another_release_of_an_image_replaces_the_template(changed: Callable[..., Deployment], gpu: Deployment) -> None:
    other = changed("a100-cluster", image="deep-learning-20260918")
    (template,) = templates_of(other)
    assert template.name == "workers-deep-learning-20260918"
    assert template.inputs["imageId"] != template_of(gpu)["imageId"]
    assert not template.ignore_changes
    assert head_of(other)["imageId"] == head_of(gpu)["imageId"]


def test_manifest_has_the_image_of_the_launch_template(gpu: Deployment) -> None:
    manifest = json.loads(gpu.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["groups"][0]["image"] == template_of(gpu)["imageId"]


def test_newer_release_of_the_project_replaces_nothing(shipped: Deployment) -> None:
    assert all(each.ignore_changes == ("imageId",) for each in templates_of(shipped))


def test_head_gets_the_newest_image_of_the_months_before(shipped: Deployment) -> None:
    assert head_template_of(shipped).ignore_changes == ()


@pytest.mark.parametrize(
    ("today", "periods"),
    [
        (date(2026, 3, 9), ["202602", "202601", "2025", "2024"]),
        (date(2026, 1, 31), ["2025", "2024"]),
    ],
)
def test_months_before_an_update(today: date, periods: list[str]) -> None:
    assert earlier_periods(today) == periods


def test_release_of_a_plain_image_is_also_that_of_the_head(changed: Callable[..., Deployment]) -> None:
    run = changed(image="ubuntu-24.04-20260714")
    (workers,) = templates_of(run)
    assert head_of(run)["imageId"] == workers.inputs["imageId"]


def test_gpu_nodes_and_head_boot_different_amis(gpu: Deployment, local: Deployment) -> None:
    assert template_of(gpu)["imageId"] != head_of(gpu)["imageId"]
    assert template_of(local)["imageId"] != head_of(local)["imageId"]  # the head's is newer


def test_workers_are_in_a_cluster_placement_group(gpu: Deployment) -> None:
    group = gpu.resource("aws:ec2/placementGroup:PlacementGroup", "placement-cluster")
    assert group.inputs["strategy"] == "cluster"
    assert template_of(gpu)["placement"] == {"groupName": group.outputs["name"]}


def test_placement_group_can_be_disabled(changed: Callable[..., Deployment]) -> None:
    run = changed(network={"placement_group": False})
    assert not run.resources_of_type("aws:ec2/placementGroup:PlacementGroup")
    assert "placement" not in template_of(run)


def test_user_data_runs_the_bootstrap_at_every_boot(shipped: Deployment) -> None:
    bucket = shipped.exports["staging_bucket"]
    for arguments, template in (("worker --group workers", template_of(shipped)), ("head", head_of(shipped))):
        text = base64.b64decode(template["userData"]).decode()
        assert text.startswith("#cloud-config\n")
        assert len(text.encode()) < LIMIT_BYTES
        config = yaml.safe_load(text)
        files = {file["path"]: file["content"] for file in config["write_files"]}
        assert files["/opt/trainyard/bootstrap.py"] == (ROOT / "trainyard/node/bootstrap.py").read_text()
        unit = files["/etc/systemd/system/trainyard-node.service"]
        assert (
            "ExecStart=/usr/bin/python3 /opt/trainyard/bootstrap.py "
            f"--role {arguments} --manifest s3://{bucket}/manifest.json --region us-east-1 "
            "--account 123456789012\n"
        ) in unit
        assert "WantedBy=multi-user.target" in unit
        assert config["runcmd"][-1] == ["systemctl", "enable", "--now", "--no-block", "trainyard-node.service"]


def test_too_long_user_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainyard/node").mkdir(parents=True)
    (tmp_path / "trainyard/node/bootstrap.py").write_text("#" * LIMIT_BYTES)
    with pytest.raises(AssertionError, match="shorten trainyard/node/bootstrap"):
        user_data("worker", "workers", "s3://bucket/manifest.json", "us-east-1", "123456789012", tmp_path)


def test_changed_job_does_not_change_user_data(local: Deployment, changed: Callable[..., Deployment]) -> None:
    other = changed(job={"name": "other", "dataset": "other", "builtin_corpus": True, "train": {}})
    assert template_of(local)["userData"] == template_of(other)["userData"]


def test_another_image_family_replaces_template_and_head(changed: Callable[..., Deployment], local: Deployment) -> None:
    """Changes of the AMI id are ignored, changes of the family are not."""
    debian = changed(image="debian-12")
    assert templates_of(debian)[0].urn != templates_of(local)[0].urn
    assert templates_of(debian)[0].inputs["blockDeviceMappings"][0]["deviceName"] == "/dev/xvda"
    assert head_template_of(debian).urn != head_template_of(local).urn


def test_changes_of_a_configured_ami_are_not_ignored(changed: Callable[..., Deployment]) -> None:
    (template,) = templates_of(changed(image="ami-0123456789abcdef0"))
    assert template.inputs["imageId"] == "ami-0123456789abcdef0"
    assert not template.ignore_changes


def test_ami_larger_than_the_root_volume_is_refused(
    changed: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = StaticEc2.image

    def large(self: StaticEc2, arguments: Any) -> dict[str, Any]:
        image = original(self, arguments)
        image["blockDeviceMappings"][0]["ebs"]["volume_size"] = "120"
        return image

    monkeypatch.setattr(StaticEc2, "image", large)
    with rejects("root_volume_below_image", "120 GiB", "root_volume_gib is 40"):
        changed(image="ami-0123456789abcdef0")
