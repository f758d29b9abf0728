"""A bake on booted machines: a node of the image skips the builder's tasks and has its own identity."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.nodes import REGION, BootedCluster, boot_cluster
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.models.events import TaskEvent
from trainyard.models.layout import BAKE_EVENTS
from trainyard.models.manifest import Subnet
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.bake import BakeOptions, BakeResult, bake
from trainyard.operations.cluster import Cluster
from trainyard.operations.image_builder import Builder, read_launch_template

pytestmark = pytest.mark.booted
# Kernel settings in memory, which every boot sets again.
IN_MEMORY = {"base: Apply kernel settings, limits and time source"}
IDENTITY = "cat /etc/machine-id; cat /opt/trainyard/node.json; cat /opt/trainyard/boot.json; hostname"


@dataclass(frozen=True)
class Baked:
    """The result of a bake, and a configured node of its image. `lines`: the lines of the display."""

    nodes: BootedCluster
    result: BakeResult
    lines: tuple[str, ...]
    builder: str
    node: str


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws) -> Iterator[Baked]:
    folder = tmp_path_factory.mktemp("bake")
    file = folder / "Pulumi.stack.yaml"
    file.write_text("config: {trainyard:cluster: {instance_type: c7i.xlarge, nodes: 2}}\n")
    with boot_cluster(folder, own_account) as nodes:
        create_worker_group(nodes)
        display = RecordingDisplay()
        result = bake(Cluster(nodes.stack, REGION, nodes.manifest_uri), BakeOptions(minutes=5, file=file), display)
        assert f"image: {result.image}" in file.read_text()
        node = nodes.launch_worker(result.image)
        assert nodes.wait_for_playbook(node, 1).status == "ok", nodes.machine(node).read_journal()
        (builder,) = [name for name in nodes.backend.machines if name != node]
        yield Baked(nodes, result, tuple(display.lines), builder, node)


def create_worker_group(nodes: BootedCluster) -> None:
    """Create the worker group that the Pulumi program would create."""
    ec2 = client("ec2", REGION)
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"][0]
    ec2.create_launch_template(
        LaunchTemplateName=nodes.stack,
        LaunchTemplateData={"ImageId": clusters.ubuntu_image_id(REGION), "InstanceType": "c7i.xlarge"},
    )
    clusters.create_group(REGION, nodes.stack, nodes.stack, subnet["SubnetId"])
    clusters.create_worker_template_version(REGION, nodes.stack, nodes.manifest_uri)
    subnets = (Subnet(id=subnet["SubnetId"], zone=subnet["AvailabilityZone"]),)
    group = nodes.manifest.groups[0].model_copy(update={"autoscaling_group": nodes.stack, "subnets": subnets})
    nodes.manifest = nodes.manifest.model_copy(update={"groups": (group,)})
    nodes.publish_manifest()


def test_display_contains_the_builders_events(baked: Baked) -> None:
    assert any(line.startswith(f"{baked.builder} configured, ") for line in baked.lines), baked.lines


def test_node_skips_the_tasks_of_the_builder(baked: Baked) -> None:
    events = node_events(Cursor(baked.nodes.staging, BAKE_EVENTS))
    tasks = [event for event in events if isinstance(event, TaskEvent) and event.status == "changed"]
    builder_tasks = {f"{event.ansible_role}: {event.task}" for event in tasks}
    assert "base: Write kernel settings, limits and apt settings" in builder_tasks
    changed = set(baked.nodes.changed_tasks(baked.node)) - IN_MEMORY
    assert not changed & builder_tasks
    assert {task.split(":")[0] for task in changed} == {"job", "refresh"}  # services of the node itself


def test_services_of_the_node_run(baked: Baked) -> None:
    machine = baked.nodes.machine(baked.node)
    output = machine.run_command("systemctl", "is-active", "trainyard-job.service", "trainyard-refresh.timer").stdout
    assert output.split() == ["active", "active"]


def test_node_identity_differs_from_the_builders(baked: Baked) -> None:
    machine = baked.nodes.machine(baked.node)
    output = machine.run_command("/bin/sh", "-c", IDENTITY).stdout
    assert baked.node in output
    assert baked.builder not in output
    assert '"boot": 1' in output
    assert len(output.split()[0]) == 32


def test_node_has_no_trace_of_the_builder(baked: Baked) -> None:
    machine = baked.nodes.machine(baked.node)
    name = baked.builder
    matches = machine.run_command(
        "grep", "-rlsF", name, "/etc", "/opt/trainyard", "/var/lib", "/var/log", "/root"
    ).stdout
    assert matches == ""


def test_stopped_builder_has_no_identity_on_disk(baked: Baked) -> None:
    machine = baked.nodes.backend.machines[baked.builder]
    assert not machine.is_running()
    assert (machine.disk / "etc/machine-id").read_bytes() == b""
    assert not (machine.disk / "opt/trainyard/node.json").exists()


def test_builder_of_a_killed_bake_terminates_itself(baked: Baked) -> None:
    """No operator terminates it; its time limit is shorter than its playbook."""
    nodes, ec2 = baked.nodes, client("ec2", REGION)
    cluster, group = Cluster(nodes.stack, REGION, nodes.manifest_uri), nodes.manifest.groups[0]
    builder, template = Builder(cluster, "bake-orphan", RecordingDisplay()), read_launch_template(cluster, group)
    until = time.time() + 12
    name = builder.launch(
        template.request(group, baked.result.source_image, "c7i.xlarge", until, builder.tags({}, until))
    )
    nodes.launched.append(name)

    def state() -> str:
        instance = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"][0]
        return str(instance["State"]["Name"])

    eventually(lambda: state() == "terminated", "the builder's termination", 90)
    assert time.time() >= until
