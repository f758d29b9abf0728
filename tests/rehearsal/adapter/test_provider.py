"""The resource provider, called over gRPC as the Pulumi engine calls it, on an emulated account."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import grpc
import pytest
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from rehearsal.adapter import property_codec
from rehearsal.adapter.provider import DEFAULTS, Provider, serve_provider
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
    """A gRPC client that sends the real engine's requests in its order, for one resource at a time."""

    def __init__(self, port: int) -> None:
        self.stub = provider_pb2_grpc.ResourceProviderStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self.stub.Configure(provider_pb2.ConfigureRequest(args=property_codec.encode({"region": "us-east-1"})))

    def check(self, type_: str, new_inputs: dict[str, Any], old_inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        message = provider_pb2.CheckRequest(
            urn=urn(type_), news=property_codec.encode(new_inputs), olds=property_codec.encode(old_inputs or {})
        )
        response = self.stub.Check(message)
        assert not response.failures, response.failures
        return property_codec.decode(response.inputs)

    def create(self, type_: str, inputs: dict[str, Any], preview: bool = False) -> tuple[str, dict[str, Any]]:
        message = provider_pb2.CreateRequest(urn=urn(type_), properties=property_codec.encode(inputs), preview=preview)
        response = self.stub.Create(message)
        return response.id, property_codec.decode(response.properties)

    def diff(self, type_: str, old_inputs: dict[str, Any], new_inputs: dict[str, Any]) -> Any:
        return self.stub.Diff(
            provider_pb2.DiffRequest(
                urn=urn(type_),
                id="x",
                old_inputs=property_codec.encode(old_inputs),
                news=property_codec.encode(new_inputs),
            )
        )

    def update(
        self,
        type_: str,
        id_: str,
        state: dict[str, Any],
        old_inputs: Any,
        new_inputs: dict[str, Any],
        preview: bool = False,
    ) -> dict[str, Any]:
        response = self.stub.Update(
            provider_pb2.UpdateRequest(
                urn=urn(type_),
                id=id_,
                olds=property_codec.encode(state),
                old_inputs=property_codec.encode(old_inputs),
                news=property_codec.encode(new_inputs),
                preview=preview,
            )
        )
        return property_codec.decode(response.properties)

    def delete(self, type_: str, id_: str, inputs: dict[str, Any]) -> None:
        self.stub.Delete(provider_pb2.DeleteRequest(urn=urn(type_), id=id_, old_inputs=property_codec.encode(inputs)))


def urn(type_: str) -> str:
    return f"urn:pulumi:s::trainyard::trainyard:infra:Part${type_}::example"


@pytest.fixture
def engine(aws: EmulatedAws, tmp_path: Path) -> Iterator[Engine]:
    with serve_provider(Provider(tmp_path, aws.region)) as port:
        yield Engine(port)


def test_resource_is_created_with_the_urn_in_the_journal_and_deleted(aws: EmulatedAws, engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16", "tags": {"a": "b"}})
    resource_id, state = engine.create(VPC, inputs)
    assert state == {"cidrBlock": "10.1.0.0/16", "tags": {"a": "b"}}
    assert {call.urn for call in aws.journal() if call.operation == "CreateVpc"} >= {urn(VPC)}
    engine.delete(VPC, resource_id, inputs)
    assert ("ec2", "vpc", resource_id) not in {
        (resource.service, resource.kind, resource.id) for resource in aws.list_resources()
    }


def test_deletion_can_be_repeated(engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16"})
    resource_id, _ = engine.create(VPC, inputs)
    engine.delete(VPC, resource_id, inputs)
    engine.delete(VPC, resource_id, inputs)


def test_diff_of_an_update_in_place_has_the_path_and_no_replacement(engine: Engine) -> None:
    old_inputs = {"cidrBlock": "10.1.0.0/16", "tags": {"trainyard:stack": "a", "kept": "k"}}
    response = engine.diff(VPC, old_inputs, {"cidrBlock": "10.1.0.0/16", "tags": {"trainyard:stack": "b", "kept": "k"}})
    assert response.changes == provider_pb2.DiffResponse.DIFF_SOME
    assert (list(response.diffs), list(response.replaces)) == (["tags"], [])
    assert {key: difference.kind for key, difference in response.detailedDiff.items()} == {
        'tags["trainyard:stack"]': provider_pb2.PropertyDiff.UPDATE
    }


def test_diff_of_equal_inputs_is_empty(engine: Engine) -> None:
    inputs = engine.check(VPC, {"cidrBlock": "10.1.0.0/16", "enableDnsSupport": True})
    assert engine.diff(VPC, inputs, inputs).changes == provider_pb2.DiffResponse.DIFF_NONE


def test_diff_of_an_unsupported_update_is_a_replacement(engine: Engine) -> None:
    response = engine.diff(
        SUBNET, {"vpcId": "vpc-1", "cidrBlock": "10.1.0.0/17"}, {"vpcId": "vpc-2", "cidrBlock": "10.1.0.0/17"}
    )
    assert list(response.replaces) == ["vpcId"]
    assert response.detailedDiff["vpcId"].kind == provider_pb2.PropertyDiff.UPDATE_REPLACE
    assert not response.deleteBeforeReplace


def test_rule_with_another_kind_of_source_is_replaced(engine: Engine) -> None:
    kind, group = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", {"referencedSecurityGroupId": "sg-1"}
    response = engine.diff(kind, {"cidrIpv4": "10.0.0.0/8"}, group)
    assert list(response.replaces) == ["cidrIpv4", "referencedSecurityGroupId"]
    assert not engine.diff(kind, {"cidrIpv4": "10.0.0.0/8"}, {"cidrIpv4": "10.0.0.0/9"}).replaces


@pytest.mark.parametrize(
    ("key", "lower", "higher"), [("storageCapacity", 1200, 2400), ("fileSystemTypeVersion", "2.12", "2.15")]
)
def test_smaller_file_system_requires_a_replacement(engine: Engine, key: str, lower: Any, higher: Any) -> None:
    kind = "aws:fsx/lustreFileSystem:LustreFileSystem"
    assert list(engine.diff(kind, {key: lower}, {key: higher}).replaces) == []
    assert list(engine.diff(kind, {key: higher}, {key: lower}).replaces) == [key]


def test_fewer_metadata_iops_and_other_efa_require_a_replacement(engine: Engine) -> None:
    kind, iops = "aws:fsx/lustreFileSystem:LustreFileSystem", "metadataConfiguration.iops"
    lower, higher = ({"metadataConfiguration": {"mode": "USER_PROVISIONED", "iops": count}} for count in (1500, 3000))
    assert list(engine.diff(kind, lower, higher).replaces) == []
    assert list(engine.diff(kind, higher, lower).replaces) == [iops]
    assert list(engine.diff(kind, {}, {"efaEnabled": True}).replaces) == ["efaEnabled"]


def test_replacement_with_a_fixed_name_deletes_first(engine: Engine) -> None:
    def diff(defaults: list[str]) -> Any:
        old_inputs, new_inputs = (
            {"name": "fixed", "strategy": resource, DEFAULTS: defaults} for resource in ("cluster", "spread")
        )
        return engine.diff("aws:ec2/placementGroup:PlacementGroup", old_inputs, new_inputs)

    assert diff([]).deleteBeforeReplace
    assert not diff(["name"]).deleteBeforeReplace


def test_update_changes_the_account_and_keeps_other_state(engine: Engine) -> None:
    old_inputs = engine.check(ROLE, {"assumeRolePolicy": TRUST, "tags": {"old": "1", "both": "1"}})
    resource_id, state = engine.create(ROLE, old_inputs)
    new_inputs = engine.check(
        ROLE, {"assumeRolePolicy": TRUST, "description": "new", "tags": {"both": "2"}}, old_inputs
    )
    after = engine.update(ROLE, resource_id, state, old_inputs, new_inputs)
    role = boto3.client("iam").get_role(RoleName=resource_id)["Role"]
    assert (role["Description"], role["Tags"]) == ("new", [{"Key": "both", "Value": "2"}])
    assert after == {**state, "description": "new", "tags": {"both": "2"}}


def test_generated_name_is_kept(engine: Engine) -> None:
    first = engine.check(ROLE, {"assumeRolePolicy": TRUST})
    assert first[DEFAULTS] == ["name"]
    assert first["name"].startswith("example-")
    assert engine.check(ROLE, {"assumeRolePolicy": TRUST}, first) == first
    assert engine.create(ROLE, first)[0] == first["name"]


def test_generated_names_differ(engine: Engine) -> None:
    first, second = (engine.check(ROLE, {"assumeRolePolicy": TRUST}) for _ in range(2))
    assert first["name"] != second["name"]


def test_fixed_name_is_not_generated_and_not_kept(engine: Engine) -> None:
    inputs = engine.check(ROLE, {"name": "fixed", "assumeRolePolicy": TRUST})
    assert (inputs["name"], inputs[DEFAULTS]) == ("fixed", [])
    assert engine.check(ROLE, {"assumeRolePolicy": TRUST}, inputs)["name"] != "fixed"


def test_imported_bucket_has_no_differences(engine: Engine) -> None:
    inputs = engine.check(BUCKET, {"tags": {"a": "b"}})
    resource_id, state = engine.create(BUCKET, inputs)
    result = engine.stub.Read(provider_pb2.ReadRequest(urn=urn(BUCKET), id=resource_id))
    assert result.id == resource_id
    assert property_codec.decode(result.properties) == state
    assert (
        engine.diff(BUCKET, property_codec.decode(result.inputs), inputs).changes == provider_pb2.DiffResponse.DIFF_NONE
    )


def test_imported_key_has_no_differences(engine: Engine) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**ROOT_STATEMENT, "Sid": "Root"}]})
    expected = {"description": "data", "enableKeyRotation": True, "policy": policy, "tags": {"a": "b"}}
    resource_id, state = engine.create(KEY, engine.check(KEY, expected))
    result = engine.stub.Read(provider_pb2.ReadRequest(urn=urn(KEY), id=resource_id))
    assert property_codec.decode(result.properties) == state
    assert (
        engine.diff(KEY, property_codec.decode(result.inputs), expected).changes == provider_pb2.DiffResponse.DIFF_NONE
    )


def test_import_of_a_missing_resource_returns_no_id(engine: Engine) -> None:
    assert engine.stub.Read(provider_pb2.ReadRequest(urn=urn(BUCKET), id="no-such-bucket")).id == ""


def test_function_returns_results_of_the_account(engine: Engine) -> None:
    token = "aws:index/getCallerIdentity:getCallerIdentity"
    response = engine.stub.Invoke(provider_pb2.InvokeRequest(tok=token))
    assert property_codec.decode(getattr(response, "return"))["accountId"] == "123456789012"


def test_error_of_an_unsupported_type_names_it(engine: Engine) -> None:
    with pytest.raises(
        grpc.RpcError, match="example: the adapter does not support the type aws:ec2/vpnGateway:VpnGateway"
    ):
        engine.check("aws:ec2/vpnGateway:VpnGateway", {})


def test_error_of_an_unsupported_function_names_it(engine: Engine) -> None:
    with pytest.raises(grpc.RpcError, match="does not support the function aws:ec2/getVpnGateway:getVpnGateway"):
        engine.stub.Invoke(provider_pb2.InvokeRequest(tok="aws:ec2/getVpnGateway:getVpnGateway"))


def test_error_of_an_unsupported_input_names_it(engine: Engine) -> None:
    rules = [{"id": "a", "filter": {"tag": {"key": "x", "valeu": "y"}}}]
    kind = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    message = provider_pb2.CheckRequest(urn=urn(kind), news=property_codec.encode({"bucket": "b", "rules": rules}))
    (failure,) = engine.stub.Check(message).failures
    assert failure.reason == f"{kind} example: the adapter does not support the input rules.filter.tag.valeu"


def test_error_of_the_api_names_resource_and_code(engine: Engine) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        engine.create(SUBNET, {"vpcId": "vpc-00000000", "cidrBlock": "10.0.0.0/17"})
    assert raised.value.details().startswith(f"{SUBNET} example: CreateSubnet: InvalidVpcID.NotFound: ")


def test_error_of_an_unsupported_update_names_the_resource(engine: Engine) -> None:
    kind = "aws:fsx/lustreFileSystem:LustreFileSystem"
    with pytest.raises(grpc.RpcError, match=f"{kind} example: the adapter does not support changes of deploymentType"):
        engine.update(kind, "fs-1", {}, {"deploymentType": "a"}, {"deploymentType": "b"})


def test_preview_creates_nothing_and_keeps_unknown_values(aws: EmulatedAws, engine: Engine) -> None:
    calls = len(aws.journal())
    inputs = engine.check(SUBNET, {"vpcId": property_codec.UNKNOWN, "cidrBlock": "10.0.0.0/17"})
    resource_id, state = engine.create(SUBNET, inputs, preview=True)
    assert resource_id == ""
    assert state == {"vpcId": property_codec.UNKNOWN, "cidrBlock": "10.0.0.0/17"}
    assert len(aws.journal()) == calls


def test_preview_of_an_update_omits_changed_outputs(engine: Engine) -> None:
    kind = "aws:ec2/launchTemplate:LaunchTemplate"
    old_inputs = {"name": "t", "instanceType": "t3.medium", "tags": {}}
    state = {**old_inputs, "latestVersion": 1, "defaultVersion": 1}
    tagged = engine.update(kind, "lt-1", state, old_inputs, {**old_inputs, "tags": {"a": "b"}}, preview=True)
    assert tagged["latestVersion"] == 1
    assert "latestVersion" not in engine.update(
        kind, "lt-1", state, old_inputs, {**old_inputs, "instanceType": "t3.large"}, preview=True
    )


def test_unknown_input_is_a_difference(engine: Engine) -> None:
    assert list(engine.diff(SUBNET, {"vpcId": "vpc-1"}, {"vpcId": property_codec.UNKNOWN}).replaces) == ["vpcId"]


def test_secret_input_is_sent_to_aws_as_a_plain_value(engine: Engine) -> None:
    secret = {rpc._special_sig_key: rpc._special_secret_sig, "value": "b"}
    _, state = engine.create(BUCKET, {"bucket": "with-secret", "tags": {"a": secret}})
    tags = boto3.client("s3").get_bucket_tagging(Bucket="with-secret")["TagSet"]
    assert tags == [{"Key": "a", "Value": "b"}]
    assert state["tags"] == {"a": "b"}


def test_object_has_the_content_of_a_file_asset(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    bucket, _ = engine.create(BUCKET, engine.check(BUCKET, {}))
    source = {**ASSET, "hash": "h", "path": str(tmp_path / "file")}
    engine.create(OBJECT, {"bucket": bucket, "key": "k", "source": source})
    assert boto3.client("s3").get_object(Bucket=bucket, Key="k")["Body"].read() == b"content"


def test_object_has_the_content_of_a_text_asset(engine: Engine) -> None:
    bucket, _ = engine.create(BUCKET, engine.check(BUCKET, {}))
    engine.create(OBJECT, {"bucket": bucket, "key": "k", "source": {**ASSET, "hash": "h", "text": "text"}})
    assert boto3.client("s3").get_object(Bucket=bucket, Key="k")["Body"].read() == b"text"


def test_assets_are_compared_by_content_not_by_path(engine: Engine) -> None:
    first, moved, other = ({**ASSET, "hash": content, "path": path} for content, path in ("1a", "1b", "2a"))
    same, changed = (
        engine.diff(OBJECT, {"bucket": "b", "key": "k", "source": first}, {"bucket": "b", "key": "k", "source": source})
        for source in (moved, other)
    )
    assert same.changes == provider_pb2.DiffResponse.DIFF_NONE
    assert list(changed.diffs) == ["source"]


def test_archive_input_is_rejected(engine: Engine) -> None:
    archive = {rpc._special_sig_key: rpc._special_archive_sig, "hash": "h", "path": "x"}
    with pytest.raises(grpc.RpcError, match="source is an archive, which the adapter does not support"):
        engine.create(OBJECT, {"bucket": "b", "key": "k", "source": archive})
