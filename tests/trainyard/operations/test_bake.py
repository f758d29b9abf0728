"""The bake with a builder that only writes events: its request, its result, and the rollback of a failure."""

import base64
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.validate import ParamValidator

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.problems import rejects
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.ec2 import tags_of
from trainyard.models.events import PlaybookEvent
from trainyard.models.layout import BAKE_EVENTS, MANIFEST, chunk_key, chunk_prefix
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS
from trainyard.operations import bake, images
from trainyard.operations import image_builder as builder
from trainyard.operations.bake import BakeOptions, BakeResult
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError, StartupError

pytestmark = pytest.mark.usefixtures("fast_polls")
STACK_FILE = "config:\n  trainyard:cluster:\n    instance_type: c7i.xlarge  # note\n    nodes: 2\n"


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(builder, "RETRY_DELAY_SECONDS", 0.0)


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    new = clusters.create_cluster(REGION)
    clusters.create_instance_profile(new.stack)
    clusters.create_worker_template_version(REGION, new.stack, f"s3://{new.staging.name}/{MANIFEST}")
    return new


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Pulumi.stack.yaml"
    path.write_text(STACK_FILE)
    return path


def builders(cluster: clusters.Cluster, *states: str) -> list[dict[str, Any]]:
    """Return every builder, including terminated ones; only those in the named states when any is named."""
    required_tags = {"trainyard:stack": cluster.stack_tag, "trainyard:role": "builder"}
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in required_tags.items()]
    reservations = client("ec2", REGION).describe_instances(Filters=filters)["Reservations"]
    instances = [instance for reservation in reservations for instance in reservation["Instances"]]
    return [instance for instance in instances if not states or instance["State"]["Name"] in states]


def stack_images(cluster: clusters.Cluster) -> list[dict[str, Any]]:
    filters = [{"Name": "tag:trainyard:stack", "Values": [cluster.stack_tag]}]
    response = client("ec2", REGION).describe_images(Owners=["self"], Filters=filters)
    descriptions: list[dict[str, Any]] = response["Images"]
    return descriptions


def write_playbook_events(cluster: clusters.Cluster, *statuses: str) -> Callable[[], bool]:
    """Return a function that writes playbook events of these statuses once a builder runs."""

    def write() -> bool:
        for name in (instance["InstanceId"] for instance in builders(cluster, "running")):
            for number, status in enumerate(statuses):
                fields = clusters.event_fields(name, "builder", number * PLAYBOOK_RETRY_SECONDS)
                event = PlaybookEvent.model_validate({**fields, "status": status, "message": "no disk"})
                key = chunk_key(chunk_prefix(BAKE_EVENTS, name, "0001", "playbook"), number)
                cluster.staging.write(key, event.model_dump_json().encode())
            return True
        return False

    return write


def run_bake(
    cluster: clusters.Cluster, file: Path, display: RecordingDisplay | None = None, **options: Any
) -> BakeResult:
    bake_options = BakeOptions(minutes=options.pop("minutes", 2.0), file=file, **options)
    return bake.bake(Cluster(cluster.stack, REGION), bake_options, display or RecordingDisplay())


def test_bake_creates_an_image_and_writes_it_into_the_stack_file(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    display = RecordingDisplay()
    run_in_background(write_playbook_events(cluster, "started", "ok"))
    result = run_bake(cluster, file, display)
    assert result.created
    assert result.stack_file_changed
    (image,) = stack_images(cluster)
    (instance,) = builders(cluster)
    assert (image["ImageId"], image["State"]) == (result.image, "available")
    assert image["SourceInstanceId"] == instance["InstanceId"]
    image_tags = tags_of(image)
    assert image_tags[tags.ROLE] == tags.IMAGE
    assert (image_tags[tags.CONTENT], image_tags[tags.SOURCE]) == (result.content_sha256, result.source_image)
    assert image_tags["team"] == "line"
    assert instance["State"]["Name"] == "terminated"
    assert file.read_text() == STACK_FILE.replace("# note\n", f"# note\n    image: {result.image}\n")
    assert any("c7i.xlarge at 0.1785 USD per hour" in line for line in display.lines)
    assert bake.format_result(result, "a")[-1].endswith("next: trainyard up -s a (running nodes are not changed)")


def test_properties_of_the_builder(cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground) -> None:
    """It is on-demand although workers are spot, has the workers' profile and key, and terminates itself."""
    observed: dict[str, Any] = {}

    def observe() -> bool:
        for instance in builders(cluster, "running"):
            name = instance["InstanceId"]
            describe = client("ec2", REGION).describe_instance_attribute
            observed["user_data"] = describe(InstanceId=name, Attribute="userData")["UserData"]["Value"]
            behavior = describe(InstanceId=name, Attribute="instanceInitiatedShutdownBehavior")
            observed["shutdown_behavior"] = behavior["InstanceInitiatedShutdownBehavior"]["Value"]
            (observed["volume"],) = client("ec2", REGION).describe_volumes(
                Filters=[{"Name": "attachment.instance-id", "Values": [name]}]
            )["Volumes"]
            observed["instance"] = instance
            return write_playbook_events(cluster, "ok")()
        return False

    run_in_background(observe)
    start_time = time.time()
    run_bake(cluster, file)
    instance = observed["instance"]
    text = base64.b64decode(observed["user_data"]).decode()
    (line,) = [line for line in text.splitlines() if "ExecStart=" in line]
    assert " --role builder --group workers " in line
    until = float(line.split("--until ")[1])
    assert start_time + 110 <= until <= time.time() + 121
    assert observed["shutdown_behavior"] == "terminate"
    assert "InstanceLifecycle" not in instance  # present only on Spot instances
    assert instance["IamInstanceProfile"]["Arn"].endswith(f"/{cluster.stack}")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert (observed["volume"]["Size"], observed["volume"]["Encrypted"]) == (40, True)
    builder_tags = tags_of(instance)
    assert (builder_tags["team"], builder_tags[tags.ROLE]) == ("line", tags.BUILDER)
    assert builder_tags[tags.UNTIL] == f"{until:.0f}"
    assert {tag["Key"] for tag in observed["volume"]["Tags"]} >= {tags.STACK, tags.ROLE}


def test_image_with_the_same_content_is_reused(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    run_in_background(write_playbook_events(cluster, "ok"))
    first = run_bake(cluster, file)
    again = run_bake(cluster, file)
    assert (again.image, again.created, again.stack_file_changed) == (first.image, False, False)
    assert len(builders(cluster)) == 1
    # When workers boot a baked image, the next image has the same source image.
    ec2 = client("ec2", REGION)
    ec2.create_launch_template_version(
        LaunchTemplateName=cluster.stack, LaunchTemplateData={**launch_template_data(cluster), "ImageId": first.image}
    )
    assert run_bake(cluster, file).image == first.image


def launch_template_data(cluster: clusters.Cluster) -> dict[str, Any]:
    response = client("ec2", REGION).describe_launch_template_versions(
        LaunchTemplateName=cluster.stack, Versions=["$Latest"]
    )
    data: dict[str, Any] = response["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def test_different_inputs_have_different_content(cluster: clusters.Cluster) -> None:
    manifest, group = cluster.manifest, cluster.manifest.groups[0]
    bundle = manifest.bundle.model_copy(update={"sha256": "1" * 64})
    node = manifest.node.model_copy(update={"variables": {"base_nofile": 1}})
    job = manifest.job.model_copy(update={"container": "repository/image:1"})
    contents = [
        images.compute_content(manifest, group, "ami-1", True),
        images.compute_content(manifest.model_copy(update={"bundle": bundle}), group, "ami-1", True),
        images.compute_content(manifest.model_copy(update={"node": node}), group, "ami-1", True),
        images.compute_content(manifest.model_copy(update={"job": job}), group, "ami-1", True),
        images.compute_content(manifest, group.model_copy(update={"gpus": 8}), "ami-1", True),
        images.compute_content(manifest, group, "ami-2", True),
        images.compute_content(manifest, group, "ami-1", False),
    ]
    assert len({content.sha256 for content in contents}) == len(contents)
    other_hardware = group.model_copy(update={"nodes": 9, "gpus": 8})
    # Without drivers, an image is for any hardware.
    assert images.compute_content(manifest, other_hardware, "ami-1", False) == contents[-1]


def test_image_name_is_limited_to_128_characters(cluster: clusters.Cluster) -> None:
    content = images.compute_content(cluster.manifest, cluster.manifest.groups[0], "ami-1", True)
    assert len(content.name("s" * 200)) == 128
    assert content.name("mine/a") == f"mine-a-{'0' * 12}-{content.sha256[:8]}"


def assert_rollback(cluster: clusters.Cluster, file: Path) -> None:
    assert {instance["State"]["Name"] for instance in builders(cluster)} == {"terminated"}
    assert stack_images(cluster) == []
    assert file.read_text() == STACK_FILE


def test_playbook_failure_ends_the_bake(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    run_in_background(write_playbook_events(cluster, "failed", "failed"))
    with pytest.raises(StartupError, match=r"the builder i-\w+ could not be configured: no disk"):
        run_bake(cluster, file)
    assert_rollback(cluster, file)


def test_bake_ends_when_the_builder_writes_no_events(cluster: clusters.Cluster, file: Path) -> None:
    with pytest.raises(StartupError, match=r"no events received from the builder|after 0.02 minutes \(--minutes\)"):
        run_bake(cluster, file, minutes=0.02)
    assert_rollback(cluster, file)


def test_termination_of_the_builder_is_reported(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    def terminate() -> bool:
        return any(
            client("ec2", REGION).terminate_instances(InstanceIds=[instance["InstanceId"]])
            for instance in builders(cluster, "running")
        )

    run_in_background(terminate)
    with pytest.raises(StartupError, match="terminated before its playbook was complete"):
        run_bake(cluster, file)
    assert_rollback(cluster, file)


def test_failed_image_is_deleted(
    cluster: clusters.Cluster,
    file: Path,
    run_in_background: RunInBackground,
    monkeypatch: pytest.MonkeyPatch,
    account: EmulatedAws,
) -> None:
    def fail(*args: Any) -> None:
        raise LaunchError("the image ami-1 is failed: Client.InternalError")

    monkeypatch.setattr(images.StackImages, "wait_until_available", fail)
    run_in_background(write_playbook_events(cluster, "ok"))
    snapshots = {resource.id for resource in account.list_resources() if resource.kind == "snapshot"}
    with pytest.raises(LaunchError, match="is failed"):
        run_bake(cluster, file)
    assert_rollback(cluster, file)
    assert {resource.id for resource in account.list_resources() if resource.kind == "snapshot"} == snapshots


def test_rollback_after_an_interrupt(cluster: clusters.Cluster, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(builder.Builder, "wait_until_configured", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_bake(cluster, file)
    assert_rollback(cluster, file)


def test_builder_of_an_interrupted_launch_is_terminated_by_tag(
    cluster: clusters.Cluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = builder.Builder.launch

    def interrupt(self: builder.Builder, request: Any) -> str:
        launch(self, request)
        self.id = None
        raise KeyboardInterrupt

    monkeypatch.setattr(builder.Builder, "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_bake(cluster, file)
    assert_rollback(cluster, file)


@pytest.fixture
def denied(account: EmulatedAws) -> Iterator[Callable[[str], None]]:
    yield lambda operation: account.inject({"kind": "deny", "operation": operation})
    account.clear_faults()


def test_builder_that_could_not_be_terminated_is_named(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground, denied: Callable[[str], None]
) -> None:
    run_in_background(write_playbook_events(cluster, "ok"))
    denied("ec2:TerminateInstances")
    with pytest.raises(LaunchError, match=r"aws ec2 terminate-instances --instance-ids i-"):
        run_bake(cluster, file)
    assert file.read_text() == STACK_FILE


def test_shortage_of_builder_capacity_is_reported(cluster: clusters.Cluster, file: Path, account: EmulatedAws) -> None:
    account.inject({"kind": "capacity", "limit": 0, "instance_type": "c7i.xlarge"})
    try:
        with pytest.raises(LaunchError, match=r"InsufficientInstanceCapacity: .*use another type with --instance-type"):
            run_bake(cluster, file)
    finally:
        account.clear_faults()
    assert builders(cluster) == []


def create_stopped_builder(cluster: clusters.Cluster, until: float) -> str:
    """Launch a builder and stop it, so that it cannot terminate itself."""
    stack, group = Cluster(cluster.stack, REGION), cluster.manifest.groups[0]
    template = builder.read_launch_template(stack, group)
    stopped = builder.Builder(stack, f"bake-{until}", RecordingDisplay())
    name = stopped.launch(template.request(group, template.image, "c7i.xlarge", until, stopped.tags({}, until)))
    client("ec2", REGION).stop_instances(InstanceIds=[name])
    return name


def test_expired_builder_of_a_killed_bake_is_terminated(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    expired = create_stopped_builder(cluster, time.time() - 1)
    another = create_stopped_builder(cluster, time.time() + 600)
    run_in_background(write_playbook_events(cluster, "ok"))
    run_bake(cluster, file)
    stopped = [instance["InstanceId"] for instance in builders(cluster, "stopped")]
    assert stopped == [another]  # of another bake that is running
    assert builder.terminate_builders(Cluster(cluster.stack, REGION)) == [another]
    assert expired in {instance["InstanceId"] for instance in builders(cluster, "terminated")}


def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_bake_prints_json_and_stop_terminates_builders(
    cluster: clusters.Cluster, file: Path, run_in_background: RunInBackground
) -> None:
    run_in_background(write_playbook_events(cluster, "ok"))
    completed = run_command("bake", "--stack", cluster.stack, "--file", str(file), "--minutes", "2", "--json")
    assert completed.returncode == 0, completed.stderr
    printed = BakeResult.model_validate_json(completed.stdout)
    assert (printed.created, printed.stack_file_changed) == (True, True)
    name = create_stopped_builder(cluster, time.time() + 600)
    stop = run_command("stop", "--stack", cluster.stack)
    assert f"terminated: {name}" in stop.stderr
    assert builders(cluster, "pending", "running", "stopped") == []


def test_reserved_capacity_is_used_for_the_groups_instance_type_only(cluster: clusters.Cluster) -> None:
    reserved = {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
    data = {**launch_template_data(cluster), "CapacityReservationSpecification": reserved}
    data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    template, group, builder_tags = builder.LaunchTemplate(data), cluster.manifest.groups[0], {tags.BAKE: "b"}
    same = template.request(group, "ami-1", "c7i.xlarge", 1.0, builder_tags)
    assert same["CapacityReservationSpecification"] == reserved
    assert same["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    other = template.request(group, "ami-1", "m7i.large", 1.0, builder_tags)
    assert not {"CapacityReservationSpecification", "InstanceMarketOptions"} & set(other)


def test_launch_template_of_an_earlier_version_is_refused(cluster: clusters.Cluster) -> None:
    text = b"ExecStart=/usr/bin/python3 /opt/b.py --role worker --group workers --manifest s3://a/m.json --region r\n"
    template = builder.LaunchTemplate({"UserData": base64.b64encode(text).decode()})
    with pytest.raises(LaunchError, match="created by an earlier version of Trainyard"):
        template.user_data(1.0)


def test_unknown_group_is_refused(cluster: clusters.Cluster, file: Path) -> None:
    with rejects("unknown_worker_group", "'none'", "workers"):
        run_bake(cluster, file, group="none")


def test_unwritable_stack_file_is_refused_before_the_builder_is_launched(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    with rejects("stack_file_not_editable", "--file"):
        run_bake(cluster, tmp_path / "none.yaml")
    assert builders(cluster) == []


def test_missing_source_image_is_reported(cluster: clusters.Cluster) -> None:
    with pytest.raises(LaunchError, match="the workers' image ami-00000000000000000 does not exist"):
        images.StackImages(Cluster(cluster.stack, REGION)).source_image("ami-00000000000000000")


def test_builder_request_is_valid_for_run_instances(cluster: clusters.Cluster) -> None:
    """The description of a launch template has keys that RunInstances does not accept."""
    data = launch_template_data(cluster)
    data["MetadataOptions"] = {**data["MetadataOptions"], "State": "pending"}
    request = builder.LaunchTemplate(data).request(
        cluster.manifest.groups[0], "ami-1", "c7i.xlarge", 1.0, {tags.BAKE: "b"}
    )
    shape = client("ec2", REGION).meta.service_model.operation_model("RunInstances").input_shape
    assert not ParamValidator().validate(request, shape).has_errors()
    assert request["MetadataOptions"]["HttpTokens"] == "required"
