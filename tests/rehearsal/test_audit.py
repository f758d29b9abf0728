"""Figures that can't lie: each check, after a good run, sees what was broken."""

from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal import audit
from rehearsal.aws.control_models import Resource
from rehearsal.aws.journal import JournalEntry
from rehearsal.aws.process import EmulatedAws
from tests.clusters import UBUNTU
from tests.conftest import REGION
from tests.rehearsal.conftest import Ended
from trainyard.aws.s3 import Bucket, client
from trainyard.models.layout import RunLayout


@pytest.fixture
def data(local: Ended, shared: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The data bucket that the main rehearsal left."""
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    client.cache_clear()
    yield Bucket(local.report["results_uri"].split("/")[2], shared["AWS_REGION"])
    client.cache_clear()


def test_results_and_metric_lines_agree(local: Ended, data: Bucket) -> None:
    run = local.report["run"]
    assert audit.check_results(data, run, audit.read_losses(data, run)) == []


def test_a_changed_metric_line_is_seen(local: Ended, data: Bucket) -> None:
    run = local.report["run"]
    key = list(data.keys(RunLayout(run).metrics))[-1]
    content = data.read(key)
    *lines, last = content.decode().splitlines()
    data.write(key, "\n".join([*lines, last.replace('"loss":', '"loss":1', 1)]).encode())
    try:
        (problem,) = audit.check_results(data, run, audit.read_losses(data, run))
    finally:
        data.write(key, content)
    assert "the metric lines in S3 have" in problem


def test_absent_results_are_seen(local: Ended, data: Bucket) -> None:
    losses = audit.read_losses(data, local.report["run"])
    assert audit.check_results(data, "no-such-run", losses) == ["results.json of run no-such-run is not in S3"]


def test_a_damaged_checkpoint_is_seen(local: Ended, data: Bucket, shared: dict[str, str]) -> None:
    uri = local.report["checkpoints"][-1]
    prefix = uri.split("/", 3)[3]
    key = next(key for key in data.keys(prefix) if key.endswith(".distcp"))
    content = data.read(key)
    assert audit.check_checkpoints([uri], shared) == []
    data.write(key, content[: len(content) // 2])
    try:
        (problem,) = audit.check_checkpoints([uri], shared)
    finally:
        data.write(key, content)
    assert uri in problem


def resource(name: str) -> Resource:
    return Resource(service="ec2", kind="volume", id=name)


def test_what_was_not_there_before_and_is_not_kept_has_leaked() -> None:
    before, after = [resource("old")], [resource("old"), resource("kept"), resource("new")]
    assert [one.id for one in audit.leaked(before, after, ["kept"])] == ["new"]


def test_a_baked_image_has_not_leaked_and_another_has(account: EmulatedAws) -> None:
    ec2, before = client("ec2", REGION), account.dump()
    image = client("ssm", REGION).get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    made = ec2.run_instances(ImageId=image, InstanceType="t3.medium", MinCount=1, MaxCount=1)
    name = made["Instances"][0]["InstanceId"]
    ec2.stop_instances(InstanceIds=[name])
    named = [{"Key": "trainyard:stack", "Value": "baked"}, {"Key": "trainyard:role", "Value": "image"}]
    tagged = [{"ResourceType": "image", "Tags": named}]
    wanted = ec2.create_image(InstanceId=name, Name="wanted", TagSpecifications=tagged)["ImageId"]
    other = ec2.create_image(InstanceId=name, Name="other")["ImageId"]
    ec2.terminate_instances(InstanceIds=[name])
    kept = audit.baked_images(REGION, "baked")
    found = audit.leaked(before, account.dump(), kept)
    assert wanted in kept
    assert [one.id for one in found if one.kind == "image"] == [other]
    assert len([one for one in found if one.kind == "snapshot"]) == 1
    for each in (wanted, other):
        ec2.deregister_image(ImageId=each, DeleteAssociatedSnapshots=True)


def entry(seq: int, **changes: Any) -> JournalEntry:
    fields: dict[str, Any] = {
        "seq": seq,
        "time": 1.0,
        "service": "ec2",
        "operation": "CreateVpc",
        "access_key": "ADAPTER",
        "role": None,
        "urn": "urn:a",
        "status": 200,
        "error_code": None,
        "error_message": None,
        "mutating": True,
    }
    return JournalEntry.model_validate(fields | changes)


def test_a_resource_with_its_call_is_well() -> None:
    assert audit.check_journal({"urn:a": "vpc"}, [entry(1)], "ADAPTER") == []


def test_a_resource_without_a_successful_call_is_seen() -> None:
    (problem,) = audit.check_journal({"urn:a": "vpc"}, [entry(1, status=400)], "ADAPTER")
    assert "vpc was reported as made" in problem


def test_a_call_of_the_adapter_for_nobody_is_seen() -> None:
    (problem,) = audit.check_journal({}, [entry(7, urn=None)], "ADAPTER")
    assert "ec2:CreateVpc (call 7) was made for no resource" in problem


def test_calls_of_others_need_no_resource() -> None:
    assert audit.check_journal({}, [entry(7, urn=None, access_key="OPERATOR")], "ADAPTER") == []


def test_a_right_that_a_role_lacks_is_seen_once() -> None:
    refused = {"role": "node", "status": 403, "error_code": "AccessDenied", "error_message": "User: ... s3:X"}
    in_json = {"role": "head", "status": 400, "error_code": "AccessDeniedException"}
    journal = [entry(1, **refused), entry(2, **refused), entry(3, **in_json)]
    assert audit.check_rights(journal, {"node", "head"}) == ["refused: User: ... s3:X", "refused: ec2:CreateVpc"]


def test_what_a_fault_denies_to_others_is_no_lack_of_a_right() -> None:
    assert audit.check_rights([entry(1, status=403, error_code="AccessDenied")], {"node"}) == []


def test_what_a_neighbours_node_is_refused_after_its_role_went_is_the_neighbours() -> None:
    assert audit.check_rights([entry(1, role="neighbour", status=403, error_code="AccessDenied")], {"node"}) == []
