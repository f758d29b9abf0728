"""The bake from the operator's side, with a builder that only speaks: what is asked for, kept, and taken back."""

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
from tests.trainyard.operations.conftest import Meanwhile, Recorder
from trainyard.aws import tags
from trainyard.aws.s3 import client
from trainyard.base import InputError
from trainyard.models.events import PlayEvent
from trainyard.models.layout import BAKE_EVENTS, MANIFEST, chunk_key, chunk_prefix
from trainyard.operations import bake, images
from trainyard.operations import image_builder as builder
from trainyard.operations.bake import Asked, BakeResult
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import BringUpError, LaunchError
from trainyard.operations.startup import OUTAGE_SECONDS

pytestmark = pytest.mark.usefixtures("quick")
STACK_FILE = "config:\n  trainyard:cluster:\n    instance_type: c7i.xlarge  # small\n    nodes: 2\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(builder, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    made = clusters.build(REGION)
    clusters.profile(made.stack)
    clusters.workers_template(REGION, made.stack, f"s3://{made.staging.name}/{MANIFEST}")
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Pulumi.stack.yaml"
    path.write_text(STACK_FILE)
    return path


def builders(cluster: clusters.Cluster, *states: str) -> list[dict[str, Any]]:
    """Every builder that there ever was, of those states where any is named."""
    wanted = {"trainyard:stack": cluster.stack, "trainyard:role": "builder"}
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
    found = client("ec2", REGION).describe_instances(Filters=filters)["Reservations"]
    every = [instance for reservation in found for instance in reservation["Instances"]]
    return [one for one in every if not states or one["State"]["Name"] in states]


def own_images(cluster: clusters.Cluster) -> list[dict[str, Any]]:
    filters = [{"Name": "tag:trainyard:stack", "Values": [cluster.stack]}]
    found: list[dict[str, Any]] = client("ec2", REGION).describe_images(Owners=["self"], Filters=filters)["Images"]
    return found


def says(cluster: clusters.Cluster, *statuses: str) -> Callable[[], bool]:
    """A builder that tells, once it runs, how its plays ended."""

    def act() -> bool:
        for one in builders(cluster, "running"):
            for number, status in enumerate(statuses):
                after = number * OUTAGE_SECONDS
                stamp = {**clusters.stamp(one["InstanceId"], "builder", after), "status": status, "message": "no disk"}
                prefix = chunk_prefix(BAKE_EVENTS, one["InstanceId"], "0001", "play")
                cluster.staging.write(
                    chunk_key(prefix, number), PlayEvent.model_validate(stamp).model_dump_json().encode()
                )
            return True
        return False

    return act


def baked(cluster: clusters.Cluster, file: Path, show: Recorder | None = None, **asked: Any) -> BakeResult:
    given = Asked(minutes=asked.pop("minutes", 2.0), file=file, **asked)
    return bake.bake(Cluster(cluster.stack, REGION), given, show or Recorder())


def test_the_builder_becomes_the_image_that_the_stack_names(
    cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile
) -> None:
    show = Recorder()
    meanwhile(says(cluster, "started", "ok"))
    done = baked(cluster, file, show)
    assert done.made
    assert done.written
    (image,) = own_images(cluster)
    (one,) = builders(cluster)
    assert (image["ImageId"], image["State"], image["SourceInstanceId"]) == (done.image, "available", one["InstanceId"])
    named = {tag["Key"]: tag["Value"] for tag in image["Tags"]}
    assert named[tags.ROLE] == tags.IMAGE
    assert (named[tags.CONTENT], named[tags.SOURCE], named["team"]) == (done.content, done.source, "line")
    assert one["State"]["Name"] == "terminated"
    assert file.read_text() == STACK_FILE.replace("# small\n", f"# small\n    image: {done.image}\n")
    assert any("c7i.xlarge at 0.1785 USD an hour" in line for line in show.lines)
    assert bake.in_words(done, "a")[-1].endswith("next: pulumi up -s a (nodes that run are not touched)")


def test_what_the_builder_is(cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile) -> None:
    """On-demand though workers are spot, under the workers' profile and key, with an end of its own."""
    seen: dict[str, Any] = {}

    def look() -> bool:
        for one in builders(cluster, "running"):
            name = one["InstanceId"]
            ask = client("ec2", REGION).describe_instance_attribute
            seen["user_data"] = ask(InstanceId=name, Attribute="userData")["UserData"]["Value"]
            end = ask(InstanceId=name, Attribute="instanceInitiatedShutdownBehavior")
            seen["end"] = end["InstanceInitiatedShutdownBehavior"]["Value"]
            (seen["volume"],) = client("ec2", REGION).describe_volumes(
                Filters=[{"Name": "attachment.instance-id", "Values": [name]}]
            )["Volumes"]
            seen["instance"] = one
            return says(cluster, "ok")()
        return False

    meanwhile(look)
    began = time.time()
    baked(cluster, file)
    one = seen["instance"]
    text = base64.b64decode(seen["user_data"]).decode()
    (line,) = [line for line in text.splitlines() if "ExecStart=" in line]
    assert " --role builder --group workers " in line
    until = float(line.split("--until ")[1])
    assert began + 110 <= until <= time.time() + 121
    assert seen["end"] == "terminate"
    assert "InstanceLifecycle" not in one  # which would say spot
    assert one["IamInstanceProfile"]["Arn"].endswith(f"/{cluster.stack}")
    assert one["MetadataOptions"]["HttpTokens"] == "required"
    assert (seen["volume"]["Size"], seen["volume"]["Encrypted"]) == (40, True)
    named = {tag["Key"]: tag["Value"] for tag in one["Tags"]}
    assert (named["team"], named[tags.ROLE], named[tags.UNTIL]) == ("line", tags.BUILDER, f"{until:.0f}")
    assert {tag["Key"] for tag in seen["volume"]["Tags"]} >= {tags.STACK, tags.ROLE}


def test_an_image_of_this_very_content_is_used_again(
    cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile
) -> None:
    meanwhile(says(cluster, "ok"))
    first = baked(cluster, file)
    again = baked(cluster, file)
    assert (again.image, again.made, again.written) == (first.image, False, False)
    assert len(builders(cluster)) == 1
    # Once workers boot the image, the next one is made of what is below it.
    ec2 = client("ec2", REGION)
    ec2.create_launch_template_version(
        LaunchTemplateName=cluster.stack, LaunchTemplateData={**_template(cluster), "ImageId": first.image}
    )
    assert baked(cluster, file).image == first.image


def _template(cluster: clusters.Cluster) -> dict[str, Any]:
    found = client("ec2", REGION).describe_launch_template_versions(
        LaunchTemplateName=cluster.stack, Versions=["$Latest"]
    )
    data: dict[str, Any] = found["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def test_another_content_is_another_image(cluster: clusters.Cluster) -> None:
    manifest, group = cluster.manifest, cluster.manifest.groups[0]
    bundle = manifest.bundle.model_copy(update={"sha256": "1" * 64})
    node = manifest.node.model_copy(update={"variables": {"base_nofile": 1}})
    job = manifest.job.model_copy(update={"container": "repository/image:1"})
    found = [
        images.content_of(manifest, group, "ami-1", True),
        images.content_of(manifest.model_copy(update={"bundle": bundle}), group, "ami-1", True),
        images.content_of(manifest.model_copy(update={"node": node}), group, "ami-1", True),
        images.content_of(manifest.model_copy(update={"job": job}), group, "ami-1", True),
        images.content_of(manifest, group.model_copy(update={"gpus": 8}), "ami-1", True),
        images.content_of(manifest, group, "ami-2", True),
        images.content_of(manifest, group, "ami-1", False),
    ]
    assert len({content.sha256 for content in found}) == len(found)
    more = group.model_copy(update={"nodes": 9, "gpus": 8})
    assert images.content_of(manifest, more, "ami-1", False) == found[-1]  # no drivers in it: for any hardware


def test_names_are_as_long_as_ec2_takes_them(cluster: clusters.Cluster) -> None:
    content = images.content_of(cluster.manifest, cluster.manifest.groups[0], "ami-1", True)
    assert len(content.name("s" * 200)) == 128
    assert content.name("a") == f"trainyard-a-{'0' * 12}-{content.sha256[:8]}"


def nothing_is_left(cluster: clusters.Cluster, file: Path) -> None:
    assert {one["State"]["Name"] for one in builders(cluster)} == {"terminated"}
    assert own_images(cluster) == []
    assert file.read_text() == STACK_FILE


def test_a_play_that_fails_for_good_ends_the_bake(cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile) -> None:
    meanwhile(says(cluster, "failed", "failed"))
    with pytest.raises(BringUpError, match=r"the builder i-\w+ could not be configured: no disk"):
        baked(cluster, file)
    nothing_is_left(cluster, file)


def test_a_builder_that_says_nothing_ends_with_the_time(cluster: clusters.Cluster, file: Path) -> None:
    with pytest.raises(BringUpError, match=r"no sign of the builder|within 0.02 minutes \(--minutes\)"):
        baked(cluster, file, minutes=0.02)
    nothing_is_left(cluster, file)


def test_a_builder_that_ended_by_itself_is_told(cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile) -> None:
    def end() -> bool:
        return any(
            client("ec2", REGION).terminate_instances(InstanceIds=[one["InstanceId"]])
            for one in builders(cluster, "running")
        )

    meanwhile(end)
    with pytest.raises(BringUpError, match="has ended before its play had"):
        baked(cluster, file)
    nothing_is_left(cluster, file)


def test_an_image_that_fails_is_taken_back(
    cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch, account: EmulatedAws
) -> None:
    def fail(*args: Any) -> None:
        raise LaunchError("the image ami-1 is failed: Client.InternalError")

    monkeypatch.setattr(images.Images, "wait", fail)
    meanwhile(says(cluster, "ok"))
    snapshots = {one.id for one in account.dump() if one.kind == "snapshot"}
    with pytest.raises(LaunchError, match="is failed"):
        baked(cluster, file)
    nothing_is_left(cluster, file)
    assert {one.id for one in account.dump() if one.kind == "snapshot"} == snapshots


def test_an_interrupt_takes_all_back(cluster: clusters.Cluster, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(builder.Builder, "wait_until_clean", interrupt)
    with pytest.raises(KeyboardInterrupt):
        baked(cluster, file)
    nothing_is_left(cluster, file)


def test_a_builder_whose_launch_was_cut_is_found_by_its_mark(
    cluster: clusters.Cluster, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = builder.Builder.launch

    def cut(self: builder.Builder, request: Any) -> str:
        launch(self, request)
        self.id = None
        raise KeyboardInterrupt

    monkeypatch.setattr(builder.Builder, "launch", cut)
    with pytest.raises(KeyboardInterrupt):
        baked(cluster, file)
    nothing_is_left(cluster, file)


@pytest.fixture
def denied(account: EmulatedAws) -> Iterator[Callable[[str], None]]:
    yield lambda operation: account.inject({"kind": "deny", "operation": operation})
    account.clear_faults()


def test_a_builder_that_can_not_be_ended_is_named(
    cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile, denied: Callable[[str], None]
) -> None:
    meanwhile(says(cluster, "ok"))
    denied("ec2:TerminateInstances")
    with pytest.raises(LaunchError, match=r"aws ec2 terminate-instances --instance-ids i-"):
        baked(cluster, file)
    assert file.read_text() == STACK_FILE


def test_no_capacity_for_the_builder(cluster: clusters.Cluster, file: Path, account: EmulatedAws) -> None:
    account.inject({"kind": "capacity", "limit": 0, "instance_type": "c7i.xlarge"})
    try:
        with pytest.raises(LaunchError, match=r"InsufficientInstanceCapacity: .*--instance-type names another"):
            baked(cluster, file)
    finally:
        account.clear_faults()
    assert builders(cluster) == []


def left_by_a_bake(cluster: clusters.Cluster, until: float) -> str:
    """A builder that is stopped: it can't end itself any more."""
    found, group = Cluster(cluster.stack, REGION), cluster.manifest.groups[0]
    template, made = builder.template_of(found, group), builder.Builder(found, f"bake-{until}", Recorder())
    name = made.launch(template.request(group, template.image, "c7i.xlarge", until, made.tags({}, until)))
    client("ec2", REGION).stop_instances(InstanceIds=[name])
    return name


def test_a_builder_that_a_dead_bake_left_goes(cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile) -> None:
    dead, another = left_by_a_bake(cluster, time.time() - 1), left_by_a_bake(cluster, time.time() + 600)
    meanwhile(says(cluster, "ok"))
    baked(cluster, file)
    assert [one["InstanceId"] for one in builders(cluster, "stopped")] == [another]  # of a bake that goes on elsewhere
    assert builder.end_builders(Cluster(cluster.stack, REGION)) == [another]
    assert dead in {one["InstanceId"] for one in builders(cluster, "terminated")}


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_speaks_to_machines_and_stop_ends_builders(
    cluster: clusters.Cluster, file: Path, meanwhile: Meanwhile
) -> None:
    meanwhile(says(cluster, "ok"))
    done = command("bake", "--stack", cluster.stack, "--file", str(file), "--minutes", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = BakeResult.model_validate_json(done.stdout)
    assert (told.made, told.written) == (True, True)
    name = left_by_a_bake(cluster, time.time() + 600)
    ended = command("stop", "--stack", cluster.stack)
    assert f"ended: {name}" in ended.stderr
    assert builders(cluster, "pending", "running", "stopped") == []


def test_reserved_capacity_serves_a_builder_of_its_own_type_only(cluster: clusters.Cluster) -> None:
    reserved = {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}
    data = {**_template(cluster), "CapacityReservationSpecification": reserved}
    data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    template, group, own = builder.Template(data), cluster.manifest.groups[0], {tags.BAKE: "b"}
    same = template.request(group, "ami-1", "c7i.xlarge", 1.0, own)
    assert same["CapacityReservationSpecification"] == reserved
    assert same["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    other = template.request(group, "ami-1", "m7i.large", 1.0, own)
    assert not {"CapacityReservationSpecification", "InstanceMarketOptions"} & set(other)


def test_a_template_of_an_earlier_tree_is_told(cluster: clusters.Cluster) -> None:
    text = b"ExecStart=/usr/bin/python3 /opt/b.py --role worker --group workers --manifest s3://a/m.json --region r\n"
    template = builder.Template({"UserData": base64.b64encode(text).decode()})
    with pytest.raises(LaunchError, match="made by an earlier Trainyard"):
        template.user_data(1.0)


def test_a_group_that_is_not_there_is_told(cluster: clusters.Cluster, file: Path) -> None:
    with pytest.raises(InputError, match=r"--group = 'none': the stack has no such group\. Name one of workers"):
        baked(cluster, file, group="none")


def test_a_file_that_can_not_be_written_to_is_told_before_anything_is_launched(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--file"):
        baked(cluster, tmp_path / "none.yaml")
    assert builders(cluster) == []


def test_a_source_that_is_gone_is_told(cluster: clusters.Cluster) -> None:
    with pytest.raises(LaunchError, match="the image ami-00000000000000000 of the workers is gone"):
        images.Images(cluster.stack, REGION).source_of("ami-00000000000000000")


def test_all_that_a_builder_is_asked_for_is_what_run_instances_takes(cluster: clusters.Cluster) -> None:
    """What EC2 tells of a launch template is a little more."""
    data = _template(cluster)
    data["MetadataOptions"] = {**data["MetadataOptions"], "State": "pending"}
    asked = builder.Template(data).request(cluster.manifest.groups[0], "ami-1", "c7i.xlarge", 1.0, {tags.BAKE: "b"})
    shape = client("ec2", REGION).meta.service_model.operation_model("RunInstances").input_shape
    assert not ParamValidator().validate(asked, shape).has_errors()
    assert asked["MetadataOptions"]["HttpTokens"] == "required"
