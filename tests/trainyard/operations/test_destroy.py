"""The command destroy: stop, `pulumi destroy` by an executable of the test, and the audit."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import placement, tags
from trainyard.aws.reservations import create_reservation, find_reservations
from trainyard.operations import destroy
from trainyard.operations.cluster import Cluster

# Deletes what the stack's Pulumi program created: the group, the launch template and the staging bucket.
DELETE = """\
import boto3, sys
stack = sys.argv[1]
boto3.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=stack, ForceDelete=True)
bucket = boto3.resource("s3").Bucket(f"{stack}-staging")
bucket.objects.delete()
bucket.delete()
"""


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    created = clusters.create_cluster(REGION)
    role = {tags.STACK: created.stack_tag, tags.ROLE: "workers"}
    created.autoscaling.create_or_update_tags(
        Tags=[
            {"ResourceId": created.group, "ResourceType": "auto-scaling-group", "PropagateAtLaunch": True}
            | {"Key": key, "Value": value}
            for key, value in role.items()
        ]
    )
    return created


class Pulumi:
    """An executable named pulumi in a folder: records its arguments, prints a line; runs a Python script to destroy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self._calls = folder / "calls"

    def install(self, script: str = "", exit_status: int = 0, argument: str = "", error: str = "") -> None:
        run = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} {argument}"
        lines = [
            "#!/bin/sh",
            f'echo "$*" >> {shlex.quote(str(self._calls))}',
            f"echo {shlex.quote(error)} >&2",
            "echo deleting",
            f'[ "$1" != destroy ] || {run}',
            f"exit {exit_status}",
        ]
        file = self.folder / "pulumi"
        file.write_text("\n".join(lines))
        file.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run trainyard with the executable on PATH."""
        return subprocess.run(
            [sys.executable, "-m", "trainyard", "destroy", *arguments],
            env={**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def pulumi(tmp_path: Path) -> Pulumi:
    return Pulumi(tmp_path)


def test_destroy_stops_deletes_and_names_the_retained_bucket(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    pulumi.install(DELETE, argument=cluster.stack)
    nodes = cluster.launch_instances(2)
    completed = pulumi.run("--stack", cluster.stack, "--yes", "--json")
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout) == {
        "stack": cluster.stack,
        "terminated": sorted(nodes),
        "pulumi_exit_status": 0,
        "retained": [{"kind": "s3", "id": cluster.data.name, "state": ""}],
        "remaining": [],
    }
    query = f"stack --stack {cluster.stack} --show-name --non-interactive --color never"
    assert pulumi.calls == [query, f"destroy --stack {cluster.stack} --yes"]
    assert "deleting" in completed.stderr


def test_destroy_can_be_repeated(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    pulumi.install(DELETE, argument=cluster.stack)
    assert pulumi.run("--stack", cluster.stack, "--yes").returncode == 0
    pulumi.install()
    completed = pulumi.run("--stack", cluster.stack, "--yes")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == [
        f"retained: s3 {cluster.data.name}",
        f"stack {cluster.stack} is destroyed",
    ]


def test_destroy_ends_the_held_capacity_of_a_stack_without_a_manifest(account: EmulatedAws, pulumi: Pulumi) -> None:
    pulumi.install()
    stack = "held-undeployed"
    role = tags.held_capacity_tags(f"trainyard/{stack}")
    group = placement.create_cluster_group(REGION, stack, role)
    create_reservation(
        REGION,
        instance_type="p4d.24xlarge",
        zone="us-east-1a",
        instances=1,
        end=time.time() + 86400,
        placement_group_arn=group.arn,
        tags=role,
        token=stack,
    )
    completed = pulumi.run("--stack", stack, "--yes")
    assert completed.returncode == 0, completed.stderr
    assert (find_reservations(REGION, role), placement.find_placement_groups(REGION, role)) == ([], [])


def test_destroy_deletes_the_placement_group_of_the_launch_template(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    role = tags.held_capacity_tags(cluster.stack_tag)
    group = placement.create_cluster_group(REGION, cluster.stack, role)
    (workers,) = cluster.manifest.groups
    cluster.set_groups((workers.model_copy(update={"placement_group_arn": group.arn}),))
    pulumi.install(DELETE, argument=cluster.stack)
    assert pulumi.run("--stack", cluster.stack, "--yes").returncode == 0
    assert placement.find_placement_groups(REGION, role) == []


def test_pulumi_destroy_deletes_the_placement_group_of_the_launch_template(cluster: clusters.Cluster) -> None:
    """`pulumi destroy` runs the command stop with the manifest."""
    role = tags.held_capacity_tags(cluster.stack_tag)
    group = placement.create_cluster_group(REGION, cluster.stack, role)
    (workers,) = cluster.manifest.groups
    cluster.set_groups((workers.model_copy(update={"placement_group_arn": group.arn}),))
    manifest = f"s3://{cluster.staging.name}/manifest.json"
    command = [sys.executable, "-m", "trainyard", "stop", "--stack", cluster.stack, "--manifest", manifest]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert placement.find_placement_groups(REGION, role) == []


def test_failed_pulumi_and_remaining_resources_are_reported(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    pulumi.install(exit_status=255)
    completed = pulumi.run("--stack", cluster.stack, "--yes")
    assert completed.returncode == 1
    assert completed.stdout.splitlines() == [
        f"retained: s3 {cluster.data.name}",
        f"remaining: autoscaling:autoScalingGroup {cluster.group}",
        f"remaining: s3 {cluster.staging.name}",
        "pulumi destroy failed with exit status 255",
        f"stack {cluster.stack} is not destroyed: run trainyard destroy -s {cluster.stack} again",
    ]


def test_destroy_requires_confirmation(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    pulumi.install()
    completed = pulumi.run("--stack", cluster.stack, stdin="n\n")
    assert (completed.returncode, completed.stdout.strip(), pulumi.calls) == (1, "", [])
    assert f"Destroy stack {cluster.stack} in us-east-1?" in completed.stderr


def test_missing_pulumi_is_one_error(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    completed = pulumi.run("--stack", cluster.stack, "--yes")
    assert completed.returncode == 2
    assert completed.stderr.startswith("trainyard: PATH: the Pulumi CLI is not on PATH. Install it")
    assert len(completed.stderr.splitlines()) == 1


def test_missing_stack_is_one_error_after_its_nodes_have_stopped(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    pulumi.install(exit_status=6, error=f"error: no stack named '{cluster.stack}' found")
    cluster.launch_instances(1)
    completed = pulumi.run("--stack", cluster.stack, "--yes")
    assert completed.returncode == 2
    assert f"trainyard: --stack = '{cluster.stack}': the Pulumi backend has no such stack. " in completed.stderr
    assert (cluster.members(), [call.split()[0] for call in pulumi.calls]) == ([], ["stack"])


def test_missing_login_is_one_error_before_anything_stops(cluster: clusters.Cluster, pulumi: Pulumi) -> None:
    error = "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions"
    pulumi.install(exit_status=255, error=error)
    nodes = cluster.launch_instances(1)
    completed = pulumi.run("--stack", cluster.stack, "--yes")
    assert completed.returncode == 2
    message = "trainyard: pulumi login: the Pulumi CLI is not logged in to a backend. Run pulumi login"
    assert completed.stderr.startswith(message)
    assert cluster.members() == nodes


@pytest.mark.parametrize("name", ["", "missing"])
def test_folder_without_a_project_is_one_error(
    cluster: clusters.Cluster, pulumi: Pulumi, tmp_path: Path, name: str
) -> None:
    pulumi.install()
    completed = pulumi.run("--stack", cluster.stack, "--yes", "--cwd", str(tmp_path / name))
    assert (completed.returncode, pulumi.calls) == (2, [])
    assert completed.stderr.startswith(
        f"trainyard: Pulumi project = '{tmp_path / name}': the folder has no Pulumi.yaml. "
    )


def test_audit_lists_existing_resources_with_the_tag(cluster: clusters.Cluster) -> None:
    ec2 = boto3.client("ec2", region_name=REGION)

    def tagged(kind: str) -> list[dict[str, object]]:
        return [{"ResourceType": kind, "Tags": [{"Key": tags.STACK, "Value": cluster.stack_tag}]}]

    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tagged("volume"))["VolumeId"]
    reservation = ec2.create_capacity_reservation(
        InstanceType="c7i.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        TagSpecifications=tagged("capacity-reservation"),
    )["CapacityReservation"]["CapacityReservationId"]
    (node,) = cluster.launch_instances(1)
    display = RecordingDisplay()
    _, remaining = destroy.audit(Cluster(cluster.stack, REGION), display, 0.0)
    assert {("ec2:volume", volume, "available"), ("ec2:capacity-reservation", reservation, "active")} <= {
        (each.kind, each.id, each.state) for each in remaining
    }
    assert ("ec2:instance", node, "running") in {(each.kind, each.id, each.state) for each in remaining}
    ec2.delete_volume(VolumeId=volume)
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation)
    cluster.autoscaling.set_desired_capacity(AutoScalingGroupName=cluster.group, DesiredCapacity=0)
    _, remaining = destroy.audit(Cluster(cluster.stack, REGION), display, 0.0)
    assert {volume, reservation, node}.isdisjoint(each.id for each in remaining)


def test_audit_waits_for_deletions_in_progress(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete_bucket(seconds: float) -> None:
        bucket = boto3.resource("s3", region_name=REGION).Bucket(cluster.staging.name)
        bucket.objects.delete()
        bucket.delete()
        cluster.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=cluster.group)

    monkeypatch.setattr(time, "sleep", delete_bucket)
    retained, remaining = destroy.audit(Cluster(cluster.stack, REGION), RecordingDisplay(), 60.0)
    assert ([each.id for each in retained], remaining) == ([cluster.data.name], ())
