"""A bake on booted machines: what a builder has done a node of its image skips, and is another machine all the same."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.nodes import REGION, Cloud, cloud
from tests.polling import eventually
from tests.trainyard.operations.conftest import Recorder
from trainyard.aws.s3 import client
from trainyard.models.events import TaskEvent
from trainyard.models.layout import BAKE_EVENTS
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.bake import Asked, BakeResult, bake
from trainyard.operations.cluster import Cluster
from trainyard.operations.image_builder import Builder, template_of

pytestmark = pytest.mark.booted
# A kernel has it anew at each boot, whatever the disk.
IN_MEMORY = {"base: Have the settings in force"}
IDENTITY = "cat /etc/machine-id; cat /opt/trainyard/node.json; cat /opt/trainyard/boot.json; hostname"


@dataclass(frozen=True)
class Baked:
    """A bake that has been, and a node of its image that has configured itself. `shown`: what the operator saw."""

    place: Cloud
    result: BakeResult
    shown: tuple[str, ...]
    builder: str
    node: str


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws) -> Iterator[Baked]:
    folder = tmp_path_factory.mktemp("bake")
    file = folder / "Pulumi.stack.yaml"
    file.write_text("config: {trainyard:cluster: {instance_type: c7i.xlarge, nodes: 2}}\n")
    with cloud(folder, own_account) as place:
        with_group(place)
        show = Recorder()
        result = bake(Cluster(place.stack, REGION, place.manifest_uri), Asked(minutes=5, file=file), show)
        assert f"image: {result.image}" in file.read_text()
        node = place.launch(result.image)
        assert place.play(node, 1).status == "ok", place.machine(node).journal()
        (builder,) = [name for name in place.backend.machines if name != node]
        yield Baked(place, result, tuple(show.lines), builder, node)


def with_group(place: Cloud) -> None:
    """The account's stack has a worker group as the Pulumi program leaves it."""
    ec2 = client("ec2", REGION)
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"][0]["SubnetId"]
    ec2.create_launch_template(
        LaunchTemplateName=place.stack,
        LaunchTemplateData={"ImageId": clusters.ubuntu(REGION), "InstanceType": "c7i.xlarge"},
    )
    clusters.create_group(REGION, place.stack, place.stack, subnet)
    clusters.workers_template(REGION, place.stack, place.manifest_uri)
    group = place.manifest.groups[0].model_copy(update={"autoscaling_group": place.stack, "subnets": (subnet,)})
    place.manifest = place.manifest.model_copy(update={"groups": (group,)})
    place.publish()


def test_the_operator_sees_the_builder_configure_itself(baked: Baked) -> None:
    assert any(line.startswith(f"{baked.builder} configured, ") for line in baked.shown), baked.shown


def test_what_is_baked_is_skipped(baked: Baked) -> None:
    told = node_events(Cursor(baked.place.staging, BAKE_EVENTS))
    tasks = [event for event in told if isinstance(event, TaskEvent) and event.status == "changed"]
    done = {f"{event.ansible_role}: {event.task}" for event in tasks}
    assert "base: Write limits, kernel settings, and what apt shall bear" in done
    changed = set(baked.place.changed(baked.node)) - IN_MEMORY
    assert not changed & done
    assert {task.split(":")[0] for task in changed} == {"job", "refresh"}  # its services are its own


def test_its_services_run(baked: Baked) -> None:
    machine = baked.place.machine(baked.node)
    told = machine.run("systemctl", "is-active", "trainyard-job.service", "trainyard-refresh.timer").stdout
    assert told.split() == ["active", "active"]


def test_it_is_another_machine(baked: Baked) -> None:
    machine = baked.place.machine(baked.node)
    told = machine.run("/bin/sh", "-c", IDENTITY).stdout
    assert baked.node in told
    assert baked.builder not in told
    assert '"boot": 1' in told
    assert len(told.split()[0]) == 32


def test_no_trace_of_the_builder_is_in_it(baked: Baked) -> None:
    machine = baked.place.machine(baked.node)
    name = baked.builder
    found = machine.run("grep", "-rlsF", name, "/etc", "/opt/trainyard", "/var/lib", "/var/log", "/root").stdout
    assert found == ""


def test_the_builder_is_off_and_its_disk_has_no_identity(baked: Baked) -> None:
    machine = baked.place.backend.machines[baked.builder]
    assert not machine.alive()
    assert (machine.disk / "etc/machine-id").read_bytes() == b""
    assert not (machine.disk / "opt/trainyard/node.json").exists()


def test_a_builder_whose_operator_has_died_ends_by_itself(baked: Baked) -> None:
    """Nobody minds it: its time is over before its play could begin."""
    place, ec2 = baked.place, client("ec2", REGION)
    found, group = Cluster(place.stack, REGION, place.manifest_uri), place.manifest.groups[0]
    made, template = Builder(found, "bake-orphan", Recorder()), template_of(found, group)
    until = time.time() + 12
    name = made.launch(template.request(group, baked.result.source, "c7i.xlarge", until, made.tags({}, until)))
    place.launched.append(name)

    def state() -> str:
        told = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"][0]
        return str(told["State"]["Name"])

    eventually(lambda: state() == "terminated", "its end", 90)
    assert time.time() >= until
