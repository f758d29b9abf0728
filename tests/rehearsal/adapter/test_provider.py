"""The provider as the Pulumi engine calls it, over gRPC, on an emulated account."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import grpc
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from rehearsal.adapter import wire
from rehearsal.adapter.provider import DEFAULTS, Provider, serving
from rehearsal.aws.process import EmulatedAws

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"
BUCKET, OBJECT, ROLE = "aws:s3/bucket:Bucket", "aws:s3/bucketObjectv2:BucketObjectv2", "aws:iam/role:Role"
KEY = "aws:kms/key:Key"
ROOT_STATEMENT = {
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
    "Action": "kms:*",
    "Resource": "*",
}
ASSET = {rpc._special_sig_key: rpc._special_asset_sig}
TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})


class Engine:
    """Asks what the real one asks, in its order, for one resource at a time."""

    def __init__(self, port: int) -> None:
        self.stub = provider_pb2_grpc.ResourceProviderStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self.stub.Configure(provider_pb2.ConfigureRequest(args=wire.write({"region": "us-east-1"})))

    def check(self, type_: str, news: dict[str, Any], olds: dict[str, Any] | None = None) -> dict[str, Any]:
        asked = provider_pb2.CheckRequest(urn=urn(type_), news=wire.write(news), olds=wire.write(olds or {}))
        answer = self.stub.Check(asked)
        assert not answer.failures, answer.failures
        return wire.read(answer.inputs)

    def create(self, type_: str, inputs: dict[str, Any], preview: bool = False) -> tuple[str, dict[str, Any]]:
        asked = provider_pb2.CreateRequest(urn=urn(type_), properties=wire.write(inputs), preview=preview)
        answer = self.stub.Create(asked)
        return answer.id, wire.read(answer.properties)

    def diff(self, type_: str, olds: dict[str, Any], news: dict[str, Any]) -> Any:
        return self.stub.Diff(
            provider_pb2.DiffRequest(urn=urn(type_), id="x", old_inputs=wire.write(olds), news=wire.write(news))
        )

    def update(
        self, type_: str, id_: str, state: dict[str, Any], olds: Any, news: dict[str, Any], preview: bool = False
    ) -> dict[str, Any]:
        answer = self.stub.Update(
            provider_pb2.UpdateRequest(
                urn=urn(type_),
                id=id_,
                olds=wire.write(state),
                old_inputs=wire.write(olds),
                news=wire.write(news),
                preview=preview,
            )
        )
        return wire.read(answer.properties)

    def delete(self, type_: str, id_: str, inputs: dict[str, Any]) -> None:
        self.stub.Delete(provider_pb2.DeleteRequest(urn=urn(type_), id=id_, old_inputs=wire.write(inputs)))


def urn(type_: str) -> str:
    return f"urn:pulumi:s::trainyard::trainyard:infra:Part${type_}::mine"


@pytest.fixture
def engine(aws: EmulatedAws, tmp_path: Path) -> Iterator[Engine]:
    with serving(Provider(tmp_path, aws.region)) as port:
        yield Engine(port)


def test_resource_is_made_with_its_urn_in_the_journal_and_goes(aws: EmulatedAws, engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16", "tags": {"a": "b"}})
    made, state = engine.create(VPC, inputs)
    assert state == {"cidrBlock": "10.1.0.0/16", "tags": {"a": "b"}}
    assert {call.urn for call in aws.journal() if call.operation == "CreateVpc"} >= {urn(VPC)}
    engine.delete(VPC, made, inputs)
    assert ("ec2", "vpc", made) not in {(one.service, one.kind, one.id) for one in aws.dump()}


def test_deletion_that_was_cut_can_be_repeated(engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16"})
    made, _ = engine.create(VPC, inputs)
    engine.delete(VPC, made, inputs)
    engine.delete(VPC, made, inputs)


def test_change_in_place_is_told_with_its_path_and_replaces_nothing(engine: Engine) -> None:
    olds = {"cidrBlock": "10.1.0.0/16", "tags": {"trainyard:stack": "a", "kept": "k"}}
    told = engine.diff(VPC, olds, {"cidrBlock": "10.1.0.0/16", "tags": {"trainyard:stack": "b", "kept": "k"}})
    assert told.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert (list(told.diffs), list(told.replaces)) == (["tags"], [])
    assert {key: one.kind for key, one in told.detailedDiff.items()} == {
        'tags["trainyard:stack"]': provider_pb2.PropertyDiff.UPDATE
    }


def test_nothing_changed_is_no_change(engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16", "enableDnsSupport": True})
    assert engine.diff(VPC, inputs, inputs).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_change_that_aws_can_not_make_replaces(engine: Engine) -> None:
    told = engine.diff(
        SUBNET, {"vpcId": "vpc-1", "cidrBlock": "10.1.0.0/17"}, {"vpcId": "vpc-2", "cidrBlock": "10.1.0.0/17"}
    )
    assert list(told.replaces) == ["vpcId"]
    assert told.detailedDiff["vpcId"].kind == provider_pb2.PropertyDiff.UPDATE_REPLACE
    assert not told.deleteBeforeReplace


def test_replacement_inside_an_object_is_found(engine: Engine) -> None:
    olds, news = ({"rootBlockDevice": {"encrypted": flag, "volumeSize": 8}} for flag in (False, True))
    assert list(engine.diff("aws:ec2/instance:Instance", olds, news).replaces) == ["rootBlockDevice.encrypted"]


@pytest.mark.parametrize(("flag", "replaced"), [(True, ["userData"]), (False, [])])
def test_user_data_replaces_where_the_program_says_so(engine: Engine, flag: bool, replaced: list[str]) -> None:
    olds, news = ({"userData": text, "userDataReplaceOnChange": flag} for text in ("one", "two"))
    assert list(engine.diff("aws:ec2/instance:Instance", olds, news).replaces) == replaced


def test_rule_that_names_another_kind_of_source_is_replaced(engine: Engine) -> None:
    kind, group = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", {"referencedSecurityGroupId": "sg-1"}
    told = engine.diff(kind, {"cidrIpv4": "10.0.0.0/8"}, group)
    assert list(told.replaces) == ["cidrIpv4", "referencedSecurityGroupId"]
    assert not engine.diff(kind, {"cidrIpv4": "10.0.0.0/8"}, {"cidrIpv4": "10.0.0.0/9"}).replaces


@pytest.mark.parametrize(
    ("key", "lower", "higher"), [("storageCapacity", 1200, 2400), ("fileSystemTypeVersion", "2.12", "2.15")]
)
def test_file_system_grows_in_place_and_never_shrinks(engine: Engine, key: str, lower: Any, higher: Any) -> None:
    kind = "aws:fsx/lustreFileSystem:LustreFileSystem"
    assert list(engine.diff(kind, {key: lower}, {key: higher}).replaces) == []
    assert list(engine.diff(kind, {key: higher}, {key: lower}).replaces) == [key]


def test_replacement_under_a_name_of_the_users_own_deletes_first(engine: Engine) -> None:
    def told(filled: list[str]) -> Any:
        olds, news = ({"name": "fixed", "strategy": one, DEFAULTS: filled} for one in ("cluster", "spread"))
        return engine.diff("aws:ec2/placementGroup:PlacementGroup", olds, news)

    assert told([]).deleteBeforeReplace
    assert not told(["name"]).deleteBeforeReplace


def test_update_changes_the_account_and_keeps_what_it_does_not_change(engine: Engine) -> None:
    olds = engine.check(ROLE, {"assumeRolePolicy": TRUST, "tags": {"old": "1", "both": "1"}})
    made, state = engine.create(ROLE, olds)
    news = engine.check(ROLE, {"assumeRolePolicy": TRUST, "description": "new", "tags": {"both": "2"}}, olds)
    after = engine.update(ROLE, made, state, olds, news)
    role = boto3.client("iam").get_role(RoleName=made)["Role"]
    assert (role["Description"], role["Tags"]) == ("new", [{"Key": "both", "Value": "2"}])
    assert after == {**state, "description": "new", "tags": {"both": "2"}}


def test_name_is_made_once_and_kept(engine: Engine) -> None:
    first = engine.check(ROLE, {"assumeRolePolicy": TRUST})
    assert first[DEFAULTS] == ["name"]
    assert first["name"].startswith("mine-")
    assert engine.check(ROLE, {"assumeRolePolicy": TRUST}, first) == first
    assert engine.create(ROLE, first)[0] == first["name"]


def test_name_of_a_replacement_is_another(engine: Engine) -> None:
    first, second = (engine.check(ROLE, {"assumeRolePolicy": TRUST}) for _ in range(2))
    assert first["name"] != second["name"]


def test_name_of_the_users_own_is_not_filled_in_and_not_kept(engine: Engine) -> None:
    given = engine.check(ROLE, {"name": "own", "assumeRolePolicy": TRUST})
    assert (given["name"], given[DEFAULTS]) == ("own", [])
    assert engine.check(ROLE, {"assumeRolePolicy": TRUST}, given)["name"] != "own"


def test_bucket_is_read_for_its_import_and_then_shows_no_change(engine: Engine) -> None:
    inputs = engine.check(BUCKET, {"tags": {"a": "b"}})
    made, state = engine.create(BUCKET, inputs)
    found = engine.stub.Read(provider_pb2.ReadRequest(urn=urn(BUCKET), id=made))
    assert found.id == made
    assert wire.read(found.properties) == state
    assert engine.diff(BUCKET, wire.read(found.inputs), inputs).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_key_is_read_for_its_import_and_then_shows_no_change(engine: Engine) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**ROOT_STATEMENT, "Sid": "Own"}]})
    wanted = {"description": "data", "enableKeyRotation": True, "policy": policy, "tags": {"a": "b"}}
    made, state = engine.create(KEY, engine.check(KEY, wanted))
    found = engine.stub.Read(provider_pb2.ReadRequest(urn=urn(KEY), id=made))
    assert wire.read(found.properties) == state
    assert engine.diff(KEY, wire.read(found.inputs), wanted).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_import_of_what_is_not_there_finds_nothing(engine: Engine) -> None:
    assert engine.stub.Read(provider_pb2.ReadRequest(urn=urn(BUCKET), id="no-such-bucket")).id == ""


def test_look_up_is_answered_from_the_account(engine: Engine) -> None:
    token = "aws:index/getCallerIdentity:getCallerIdentity"
    answer = engine.stub.Invoke(provider_pb2.InvokeRequest(tok=token))
    assert wire.read(getattr(answer, "return"))["accountId"] == "123456789012"


def test_unknown_type_ends_with_its_name(engine: Engine) -> None:
    with pytest.raises(grpc.RpcError, match="mine: the adapter does not know the type aws:ec2/vpnGateway:VpnGateway"):
        engine.check("aws:ec2/vpnGateway:VpnGateway", {})


def test_unknown_look_up_ends_with_its_name(engine: Engine) -> None:
    with pytest.raises(grpc.RpcError, match="does not know the look-up aws:ec2/getVpnGateway:getVpnGateway"):
        engine.stub.Invoke(provider_pb2.InvokeRequest(tok="aws:ec2/getVpnGateway:getVpnGateway"))


def test_input_of_a_new_kind_ends_with_its_name(engine: Engine) -> None:
    rules = [{"id": "a", "filter": {"tag": {"key": "x", "valeu": "y"}}}]
    kind = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    asked = provider_pb2.CheckRequest(urn=urn(kind), news=wire.write({"bucket": "b", "rules": rules}))
    (failure,) = engine.stub.Check(asked).failures
    assert failure.reason == f"{kind} mine: the adapter does not know the input rules.filter.tag.valeu"


def test_refusal_of_the_api_names_resource_and_code(engine: Engine) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        engine.create(SUBNET, {"vpcId": "vpc-00000000", "cidrBlock": "10.0.0.0/17"})
    assert refused.value.details().startswith(f"{SUBNET} mine: CreateSubnet: InvalidVpcID.NotFound: ")


def test_change_that_is_not_modelled_names_the_resource(engine: Engine) -> None:
    kind = "aws:ec2/instance:Instance"
    with pytest.raises(grpc.RpcError, match=f"{kind} mine: the adapter can't change instanceType"):
        engine.update(kind, "i-1", {}, {"instanceType": "a"}, {"instanceType": "b"})


def test_preview_makes_nothing_and_keeps_the_unknown(aws: EmulatedAws, engine: Engine) -> None:
    calls = len(aws.journal())
    inputs = engine.check(SUBNET, {"vpcId": wire.UNKNOWN, "cidrBlock": "10.0.0.0/17"})
    made, state = engine.create(SUBNET, inputs, preview=True)
    assert made == ""
    assert state == {"vpcId": wire.UNKNOWN, "cidrBlock": "10.0.0.0/17"}
    assert len(aws.journal()) == calls


def test_preview_of_an_update_knows_all_but_what_that_makes_anew(engine: Engine) -> None:
    kind = "aws:ec2/launchTemplate:LaunchTemplate"
    olds = {"name": "t", "instanceType": "t3.medium", "tags": {}}
    state = {**olds, "latestVersion": 1, "defaultVersion": 1}
    tagged = engine.update(kind, "lt-1", state, olds, {**olds, "tags": {"a": "b"}}, preview=True)
    assert tagged["latestVersion"] == 1
    assert "latestVersion" not in engine.update(
        kind, "lt-1", state, olds, {**olds, "instanceType": "t3.large"}, preview=True
    )


def test_unknown_input_counts_as_a_change(engine: Engine) -> None:
    assert list(engine.diff(SUBNET, {"vpcId": "vpc-1"}, {"vpcId": wire.UNKNOWN}).replaces) == ["vpcId"]


def test_secret_input_reaches_aws_as_its_value(engine: Engine) -> None:
    secret = {rpc._special_sig_key: rpc._special_secret_sig, "value": "b"}
    _, state = engine.create(BUCKET, {"bucket": "with-secret", "tags": {"a": secret}})
    tags = boto3.client("s3").get_bucket_tagging(Bucket="with-secret")["TagSet"]
    assert tags == [{"Key": "a", "Value": "b"}]
    assert state["tags"] == {"a": "b"}


def test_file_of_an_asset_is_the_objects_content(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    bucket, _ = engine.create(BUCKET, engine.check(BUCKET, {}))
    source = {**ASSET, "hash": "h", "path": str(tmp_path / "file")}
    engine.create(OBJECT, {"bucket": bucket, "key": "k", "source": source})
    assert boto3.client("s3").get_object(Bucket=bucket, Key="k")["Body"].read() == b"content"


def test_text_of_an_asset_is_the_objects_content(engine: Engine) -> None:
    bucket, _ = engine.create(BUCKET, engine.check(BUCKET, {}))
    engine.create(OBJECT, {"bucket": bucket, "key": "k", "source": {**ASSET, "hash": "h", "text": "words"}})
    assert boto3.client("s3").get_object(Bucket=bucket, Key="k")["Body"].read() == b"words"


def test_asset_is_compared_by_its_content_not_by_where_it_lies(engine: Engine) -> None:
    here, there, other = ({**ASSET, "hash": content, "path": path} for content, path in ("1a", "1b", "2a"))
    same, changed = (
        engine.diff(OBJECT, {"bucket": "b", "key": "k", "source": here}, {"bucket": "b", "key": "k", "source": source})
        for source in (there, other)
    )
    assert same.changes == provider_pb2.DiffResponse.DIFF_NONE
    assert list(changed.diffs) == ["source"]


def test_archive_is_refused_with_its_name(engine: Engine) -> None:
    archive = {rpc._special_sig_key: rpc._special_archive_sig, "hash": "h", "path": "x"}
    with pytest.raises(grpc.RpcError, match="source is an archive: the adapter takes none"):
        engine.create(OBJECT, {"bucket": "b", "key": "k", "source": archive})
