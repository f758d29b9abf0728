"""Each check of the audit detects a wrong value after a successful rehearsal."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rehearsal import audit
from rehearsal.aws.control_models import Resource
from rehearsal.aws.journal import JournalEntry
from rehearsal.aws.process import EmulatedAws
from tests.clusters import UBUNTU_PARAMETER
from tests.conftest import REGION
from tests.rehearsal.conftest import CompletedRehearsal
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import RunLayout


@pytest.fixture
def data(local: CompletedRehearsal, shared: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The data bucket of the main rehearsal."""
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it may have the keys of another account
    client.cache_clear()
    yield Bucket(local.report["results_uri"].split("/")[2], shared["AWS_REGION"])
    client.cache_clear()


def test_results_and_metric_lines_agree(local: CompletedRehearsal, data: Bucket) -> None:
    run = local.report["run"]
    assert audit.check_results(data, run, audit.read_losses(data, run)) == []


def test_changed_metric_line_is_reported(local: CompletedRehearsal, data: Bucket) -> None:
    run = local.report["run"]
    key = list(data.keys(RunLayout(run).metrics))[-1]
    content = data.read(key)
    *lines, last = content.decode().splitlines()
    data.write(key, "\n".join([*lines, last.replace('"loss":', '"loss":1', 1)]).encode())
    try:
        (problem,) = audit.check_results(data, run, audit.read_losses(data, run))
    finally:
        data.write(key, content)
    assert "in the metric lines" in problem


def test_missing_results_are_reported(local: CompletedRehearsal, data: Bucket) -> None:
    losses = audit.read_losses(data, local.report["run"])
    assert audit.check_results(data, "no-such-run", losses) == ["results.json of run no-such-run is not in S3"]


def test_damaged_checkpoint_is_reported(local: CompletedRehearsal, data: Bucket, shared: dict[str, str]) -> None:
    uri = local.report["checkpoints"][-1]["uri"]
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


def test_new_resource_that_is_not_retained_has_leaked() -> None:
    before, after = [resource("old")], [resource("old"), resource("retained"), resource("new")]
    assert [leak.id for leak in audit.leaked_resources(before, after, ["retained"])] == ["new"]


def test_image_without_the_role_tag_has_leaked_and_a_baked_image_has_not(account: EmulatedAws) -> None:
    ec2, before = client("ec2", REGION), account.list_resources()
    image = client("ssm", REGION).get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"]
    response = ec2.run_instances(ImageId=image, InstanceType="t3.medium", MinCount=1, MaxCount=1)
    name = response["Instances"][0]["InstanceId"]
    ec2.stop_instances(InstanceIds=[name])
    image_tags = [{"Key": "trainyard:stack", "Value": "baked"}, {"Key": "trainyard:role", "Value": "image"}]
    specifications = [{"ResourceType": "image", "Tags": image_tags}]
    baked = ec2.create_image(InstanceId=name, Name="baked", TagSpecifications=specifications)["ImageId"]
    other = ec2.create_image(InstanceId=name, Name="other")["ImageId"]
    ec2.terminate_instances(InstanceIds=[name])
    retained = audit.baked_images(REGION, "baked")
    leaks = audit.leaked_resources(before, account.list_resources(), retained)
    assert baked in retained
    assert [leak.id for leak in leaks if leak.kind == "image"] == [other]
    assert len([leak for leak in leaks if leak.kind == "snapshot"]) == 1
    for image in (baked, other):
        ec2.deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)


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


def test_created_resource_with_a_successful_call_passes() -> None:
    assert audit.check_journal({"urn:a": "vpc"}, [entry(1)], "ADAPTER") == []


def test_created_resource_without_a_successful_call_is_reported() -> None:
    (problem,) = audit.check_journal({"urn:a": "vpc"}, [entry(1, status=400)], "ADAPTER")
    assert "vpc was reported as created" in problem


def test_adapter_call_without_a_resource_is_reported() -> None:
    (problem,) = audit.check_journal({}, [entry(7, urn=None)], "ADAPTER")
    assert "ec2:CreateVpc (call 7) belongs to no resource" in problem


def test_calls_with_other_access_keys_need_no_resource() -> None:
    assert audit.check_journal({}, [entry(7, urn=None, access_key="OPERATOR")], "ADAPTER") == []


def test_denied_permission_of_a_role_is_reported_once() -> None:
    denied = {"role": "node", "status": 403, "error_code": "AccessDenied", "error_message": "User: ... s3:X"}
    denied_json = {"role": "head", "status": 400, "error_code": "AccessDeniedException"}
    journal = [entry(1, **denied), entry(2, **denied), entry(3, **denied_json)]
    assert audit.check_permissions(journal, {"node", "head"}) == [
        "access denied: User: ... s3:X",
        "access denied: ec2:CreateVpc",
    ]


def test_denied_call_without_a_role_is_ignored() -> None:
    assert audit.check_permissions([entry(1, status=403, error_code="AccessDenied")], {"node"}) == []


def test_denied_call_of_another_stacks_role_is_ignored() -> None:
    assert (
        audit.check_permissions([entry(1, role="other-stack", status=403, error_code="AccessDenied")], {"node"}) == []
    )
