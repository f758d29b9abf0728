"""Authorization of role sessions, through the API."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
import urllib3
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.account_file import PrincipalName
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.iam.test_identity import TRUST

Statement = dict[str, Any]
Clients = Callable[..., Any]
Role = Callable[..., Clients]
CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})


def allow(actions: str | list[str], resources: str | list[str], **more: Any) -> Statement:
    return {"Effect": "Allow", "Action": actions, "Resource": resources, **more}


def deny(actions: str | list[str], resources: str | list[str], **more: Any) -> Statement:
    return {**allow(actions, resources, **more), "Effect": "Deny"}


def outcome(call: Callable[[], Any]) -> tuple[str | None, int]:
    """Return the error code, if any, and the HTTP status of a call."""
    try:
        return None, int(call()["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        return str(error.response["Error"]["Code"]), int(error.response["ResponseMetadata"]["HTTPStatusCode"])


ALLOWED, DENIED = (None, 200), ("AccessDenied", 403)
UNKNOWN = ("NotImplemented", 501)


def session(aws: EmulatedAws, client: Client, role: str, **options: Any) -> Clients:
    """Return a function that returns clients of a session of this role."""
    arn = f"arn:aws:iam::123456789012:role/{role}"
    created = client("sts").assume_role(RoleArn=arn, RoleSessionName="i-1", **options)["Credentials"]
    keys = boto3.Session(
        created["AccessKeyId"], created["SecretAccessKey"], created["SessionToken"], region_name="us-east-1"
    )

    def of(service: str, more: Config | None = None) -> Any:
        return keys.client(service, endpoint_url=aws.endpoint, config=CONFIG.merge(more) if more else CONFIG)

    return of


@pytest.fixture
def role(aws: EmulatedAws, client: Client, name: str) -> Role:
    """Return a function that creates a role with these statements and returns clients of its session."""

    def make(*statements: Statement, managed: str | None = None) -> Clients:
        iam, document = client("iam"), {"Version": "2012-10-17", "Statement": list(statements)}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=json.dumps(document))
        if managed:
            iam.attach_role_policy(RoleName=name, PolicyArn=managed)
        return session(aws, client, name)

    return make


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    """A bucket with the objects `first/x` and `other/x`."""
    bucket = f"authorized-{name}"
    client("s3").create_bucket(Bucket=bucket)
    for key in ("first/x", "other/x"):
        client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")
    return bucket


@pytest.fixture
def objects_arn(bucket: str) -> str:
    """The objects below `first/`, as a policy names them."""
    return f"arn:aws:s3:::{bucket}/first/*"


# S3


def test_role_without_policies_is_denied(role: Role, bucket: str) -> None:
    s3 = role()("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == DENIED
    assert outcome(lambda: s3.list_objects_v2(Bucket=bucket)) == DENIED
    assert outcome(s3.list_buckets) == DENIED


def test_permission_is_limited_to_the_prefix(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow(["s3:GetObject", "s3:PutObject"], objects_arn))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="first/y", Body=b"")) == ALLOWED
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == DENIED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="other/y", Body=b"")) == DENIED


def test_permission_is_limited_to_the_bucket(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    client("s3").create_bucket(Bucket=f"{bucket}-next")
    client("s3").put_object(Bucket=f"{bucket}-next", Key="first/x", Body=b"x")
    s3 = role(allow("s3:*", [objects_arn, f"arn:aws:s3:::{bucket}"]))("s3")
    assert outcome(lambda: s3.get_object(Bucket=f"{bucket}-next", Key="first/x")) == DENIED
    assert outcome(lambda: s3.list_objects_v2(Bucket=f"{bucket}-next")) == DENIED


def test_denied_call_has_no_effect_and_is_in_the_journal(
    aws: EmulatedAws, client: Client, role: Role, bucket: str, objects_arn: str
) -> None:
    s3 = role(allow("s3:GetObject", objects_arn))("s3")
    assert outcome(lambda: s3.delete_object(Bucket=bucket, Key="first/x")) == DENIED
    entry = aws.journal()[-1]
    assert (entry.operation, entry.status, entry.error_code) == ("DeleteObject", 403, "AccessDenied")
    assert "assumed-role" in str(entry.error_message)
    assert f"s3:DeleteObject on resource: {objects_arn[:-1]}x" in str(entry.error_message)
    assert client("s3").get_object(Bucket=bucket, Key="first/x")["Body"].read() == b"x"


def test_explicit_denial_overrides_permission(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:*", "*"), deny("s3:Put*", objects_arn))("s3")
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="first/x", Body=b"")) == DENIED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="other/x", Body=b"")) == ALLOWED


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (allow("S3:getobject", "*"), ALLOWED),
        (allow("s3:Get?bject", "*"), ALLOWED),
        (allow("*", "arn:aws:s3:::authorized-*/f?rst/x"), ALLOWED),
        (allow("s3:GetObject", "arn:aws:s3:::RIGHTS-*"), DENIED),
        ({"Effect": "Allow", "NotAction": "s3:Put*", "Resource": "*"}, ALLOWED),
        ({"Effect": "Allow", "NotAction": "s3:Get*", "Resource": "*"}, DENIED),
        ({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::*/first/*"}, DENIED),
        ({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::*/other/*"}, ALLOWED),
    ],
)
def test_statements_match_as_in_aws(
    role: Role, bucket: str, statement: Statement, expected: tuple[str | None, int]
) -> None:
    s3 = role(statement)("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == expected


def test_head_object_requires_get_object(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:GetObject", objects_arn))("s3")
    assert outcome(lambda: s3.head_object(Bucket=bucket, Key="first/x")) == ALLOWED
    assert outcome(lambda: s3.head_object(Bucket=bucket, Key="other/x")) == ("403", 403)


def test_missing_object_is_denied_without_list_permission(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:GetObject", objects_arn))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/none")) == DENIED


def test_missing_object_is_reported_with_list_permission(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:GetObject", objects_arn), allow("s3:ListBucket", objects_arn.removesuffix("/first/*")))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/none")) == ("NoSuchKey", 404)


@pytest.mark.parametrize("operator", ["StringEquals", "StringLike"])
def test_list_permission_is_limited_by_the_prefix_condition(role: Role, bucket: str, operator: str) -> None:
    condition = {operator: {"s3:prefix": "first/" if operator == "StringEquals" else "first/*"}}
    s3 = role(allow("s3:ListBucket", f"arn:aws:s3:::{bucket}", Condition=condition))("s3")
    assert outcome(lambda: s3.list_objects_v2(Bucket=bucket, Prefix="first/")) == ALLOWED
    assert outcome(lambda: s3.list_objects_v2(Bucket=bucket, Prefix="other/")) == DENIED
    assert outcome(lambda: s3.list_objects_v2(Bucket=bucket)) == DENIED


def test_copy_requires_read_of_source_and_write_of_target(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(
        allow(["s3:GetObject", "s3:PutObject"], objects_arn), allow("s3:GetObject", f"arn:aws:s3:::{bucket}/read/*")
    )("s3")

    def copy(source: str, target: str) -> tuple[str | None, int]:
        return outcome(lambda: s3.copy_object(Bucket=bucket, Key=target, CopySource=f"{bucket}/{source}"))

    assert copy("first/x", "first/y") == ALLOWED
    assert copy("other/x", "first/y") == DENIED
    assert copy("first/x", "read/y") == DENIED


def test_copying_tags_requires_tagging_permissions(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    client("s3").put_object(Bucket=bucket, Key="first/tagged", Body=b"", Tagging="a=b")
    s3 = role(allow(["s3:GetObject", "s3:PutObject"], objects_arn))("s3")
    copy = {"Bucket": bucket, "Key": "first/y", "CopySource": f"{bucket}/first/tagged"}
    assert outcome(lambda: s3.copy_object(**copy)) == DENIED
    assert outcome(lambda: s3.copy_object(**copy, TaggingDirective="REPLACE")) == ALLOWED


def test_multipart_upload_requires_put_object(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:PutObject", objects_arn))("s3")
    assert outcome(lambda: s3.create_multipart_upload(Bucket=bucket, Key="other/big")) == DENIED
    target = {"Bucket": bucket, "Key": "first/big"}
    upload = {**target, "UploadId": s3.create_multipart_upload(**target)["UploadId"]}
    part = s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    assert outcome(lambda: s3.list_parts(**upload)) == DENIED
    assert outcome(lambda: s3.abort_multipart_upload(**upload)) == DENIED
    assert outcome(lambda: s3.list_multipart_uploads(Bucket=bucket)) == DENIED
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    assert outcome(lambda: s3.complete_multipart_upload(**upload, MultipartUpload=parts)) == ALLOWED


def test_abort_of_an_upload_requires_the_permission(role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow(["s3:PutObject", "s3:AbortMultipartUpload"], objects_arn))("s3")
    target = {"Bucket": bucket, "Key": "first/big"}
    upload = s3.create_multipart_upload(**target)["UploadId"]
    assert outcome(lambda: s3.abort_multipart_upload(**target, UploadId=upload)) == (None, 204)


def test_delete_objects_deletes_only_allowed_keys(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:DeleteObject", objects_arn))("s3")
    expected = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "first/x"}, {"Key": "other/x"}]})
    assert [entry["Key"] for entry in expected["Deleted"]] == ["first/x"]
    assert [(entry["Key"], entry["Code"]) for entry in expected["Errors"]] == [("other/x", "AccessDenied")]
    assert [entry["Key"] for entry in client("s3").list_objects_v2(Bucket=bucket)["Contents"]] == ["other/x"]


def test_object_version_requires_version_permission(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    client("s3").put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    target = {"Bucket": bucket, "Key": "first/x"}
    target["VersionId"] = client("s3").put_object(**target, Body=b"new")["VersionId"]
    s3 = role(allow(["s3:GetObject", "s3:DeleteObject"], objects_arn))("s3")
    assert outcome(lambda: s3.get_object(**target)) == DENIED
    assert outcome(lambda: s3.delete_object(**target)) == DENIED


def test_tagging_an_object_requires_tagging_permission(
    role: Role, client: Client, bucket: str, objects_arn: str
) -> None:
    tags = {"Tagging": {"TagSet": [{"Key": "trainyard:keep", "Value": "no"}]}}
    s3 = role(allow("s3:PutObject", "*"), allow("s3:PutObjectTagging", objects_arn))("s3")
    assert outcome(lambda: s3.put_object_tagging(Bucket=bucket, Key="first/x", **tags)) == ALLOWED
    assert outcome(lambda: s3.put_object_tagging(Bucket=bucket, Key="other/x", **tags)) == DENIED


def test_bucket_policy_can_deny_actions_of_the_role(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    policy = {"Version": "2012-10-17", "Statement": [deny("s3:GetObject*", objects_arn, Principal="*")]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == DENIED
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == ALLOWED


def test_bucket_policy_can_allow_more_than_the_role(client: Client, role: Role, bucket: str, objects_arn: str) -> None:
    s3 = role()("s3")
    policy = {"Version": "2012-10-17", "Statement": [allow("s3:GetObject", objects_arn, Principal={"AWS": "*"})]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == DENIED


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_presigned_url_has_the_permissions_of_the_signer(
    role: Role, bucket: str, objects_arn: str, version: str
) -> None:
    s3 = role(allow("s3:GetObject", objects_arn))("s3", Config(signature_version=version))

    def get(key: str) -> int:
        address = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
        return urllib3.request("GET", address).status

    assert (get("first/x"), get("other/x")) == (200, 403)


# KMS


@pytest.fixture
def key(client: Client) -> str:
    return str(client("kms").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture
def encrypted(client: Client, bucket: str, key: str) -> str:
    """The bucket, with this key as its default from the object `first/secret` on."""
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    client("s3").put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    client("s3").put_object(Bucket=bucket, Key="first/secret", Body=b"x")
    return bucket


def test_encrypted_object_requires_permission_for_the_key(role: Role, encrypted: str) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    assert outcome(lambda: s3.get_object(Bucket=encrypted, Key="first/secret")) == DENIED
    assert outcome(lambda: s3.put_object(Bucket=encrypted, Key="first/y", Body=b"")) == DENIED
    assert outcome(lambda: s3.create_multipart_upload(Bucket=encrypted, Key="first/y")) == DENIED
    copy = f"{encrypted}/first/x"
    assert outcome(lambda: s3.copy_object(Bucket=encrypted, Key="first/y", CopySource=copy)) == DENIED
    assert outcome(lambda: s3.head_object(Bucket=encrypted, Key="first/y"))[1] == 404


def test_kms_permissions_are_separate(role: Role, encrypted: str, key: str) -> None:
    through = {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}
    s3 = role(allow("s3:*", "*"), allow("kms:GenerateDataKey", key, Condition=through))("s3")
    assert outcome(lambda: s3.put_object(Bucket=encrypted, Key="first/y", Body=b"")) == ALLOWED
    assert outcome(lambda: s3.get_object(Bucket=encrypted, Key="first/y")) == DENIED
    assert outcome(lambda: s3.create_multipart_upload(Bucket=encrypted, Key="first/y")) == DENIED


# Other services


@pytest.fixture
def tagged(group: Callable[..., str]) -> str:
    """A group with the tag of the stack `mine`."""
    return group(Tags=[{"Key": "stack", "Value": "mine", "PropagateAtLaunch": True}])


@pytest.mark.parametrize(("stack", "expected"), [("mine", ALLOWED), ("another", DENIED)])
def test_group_update_is_allowed_by_tag_condition(
    client: Client, role: Role, tagged: str, stack: str, expected: tuple[str | None, int]
) -> None:
    condition = {"StringEquals": {"aws:ResourceTag/stack": stack}}
    autoscaling = role(allow("autoscaling:SetDesiredCapacity", "*", Condition=condition))("autoscaling")
    resize = {"AutoScalingGroupName": tagged, "DesiredCapacity": 1}
    assert outcome(lambda: autoscaling.set_desired_capacity(**resize)) == expected
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[tagged])[
        "AutoScalingGroups"
    ]
    assert described["DesiredCapacity"] == (expected == ALLOWED)


def test_tag_condition_uses_current_tags(client: Client, role: Role, tagged: str) -> None:
    condition = {"StringEquals": {"autoscaling:ResourceTag/stack": "mine"}}
    autoscaling = role(allow("autoscaling:SuspendProcesses", "*", Condition=condition))("autoscaling")
    assert outcome(lambda: autoscaling.suspend_processes(AutoScalingGroupName=tagged)) == ALLOWED
    tag = {"ResourceId": tagged, "ResourceType": "auto-scaling-group", "Key": "stack", "PropagateAtLaunch": False}
    client("autoscaling").create_or_update_tags(Tags=[{**tag, "Value": "another"}])
    assert outcome(lambda: autoscaling.suspend_processes(AutoScalingGroupName=tagged)) == DENIED


def test_tag_condition_does_not_match_an_unknown_group(role: Role) -> None:
    condition = {"StringEquals": {"aws:ResourceTag/stack": "mine"}}
    autoscaling = role(allow("autoscaling:*", "*", Condition=condition))("autoscaling")
    assert outcome(lambda: autoscaling.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=0)) == DENIED
    assert outcome(autoscaling.describe_auto_scaling_groups) == DENIED


def test_group_is_matched_by_arn(role: Role, tagged: str) -> None:
    arn = f"arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/{tagged}"
    autoscaling = role(allow("autoscaling:*", arn))("autoscaling")
    assert outcome(lambda: autoscaling.set_desired_capacity(AutoScalingGroupName=tagged, DesiredCapacity=0)) == ALLOWED
    assert outcome(autoscaling.describe_auto_scaling_groups) == DENIED  # the action has no resource-level permissions


def test_parameter_is_matched_by_arn(client: Client, role: Role, name: str) -> None:
    for path in ("first", "other"):
        client("ssm").put_parameter(Name=f"/{name}/{path}", Value="x", Type="SecureString")
    ssm = role(allow("ssm:GetParameter*", f"arn:aws:ssm:us-east-1:123456789012:parameter/{name}/first"))("ssm")
    assert outcome(lambda: ssm.get_parameter(Name=f"/{name}/first", WithDecryption=True)) == ALLOWED
    refused = ("AccessDeniedException", 400)
    assert outcome(lambda: ssm.get_parameter(Name=f"/{name}/other")) == refused
    assert outcome(lambda: ssm.get_parameters(Names=[f"/{name}/first", f"/{name}/other"])) == refused


def test_encrypted_parameter_requires_permission_for_the_key(client: Client, role: Role, name: str, key: str) -> None:
    client("ssm").put_parameter(Name=name, Value="x", Type="SecureString", KeyId=key)
    ssm = role(allow("ssm:GetParameter", "*"))("ssm")
    assert outcome(lambda: ssm.get_parameter(Name=name, WithDecryption=True)) == ("AccessDeniedException", 400)
    assert outcome(lambda: ssm.get_parameter(Name=name)) == ALLOWED


def test_ec2_denial_has_the_error_format(role: Role) -> None:
    ec2 = role(allow("ec2:DescribeVpcs", "*"))("ec2")
    assert outcome(ec2.describe_vpcs) == ALLOWED
    assert outcome(ec2.describe_subnets) == ("UnauthorizedOperation", 403)
    assert outcome(lambda: ec2.terminate_instances(InstanceIds=["i-1"])) == ("UnauthorizedOperation", 403)


def test_managed_policy_applies(client: Client, role: Role, name: str) -> None:
    client("ssm").put_parameter(Name=name, Value="x", Type="String")
    clients = role(managed="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    assert outcome(lambda: clients("ssm").get_parameter(Name=name)) == ALLOWED
    assert outcome(lambda: clients("ssm").delete_parameter(Name=name)) == ("AccessDeniedException", 400)


def test_default_version_of_a_managed_policy_applies(client: Client, role: Role, name: str, bucket: str) -> None:
    def document(action: str) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": allow(action, "*")})

    iam = client("iam")
    policy = iam.create_policy(PolicyName=name, PolicyDocument=document("s3:GetObject"))["Policy"]["Arn"]
    s3 = role(managed=policy)("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED
    iam.create_policy_version(PolicyArn=policy, PolicyDocument=document("s3:PutObject"), SetAsDefault=True)
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == DENIED


def test_policy_change_applies_at_once(client: Client, role: Role, name: str, bucket: str) -> None:
    s3 = role(allow("s3:GetObject", "*"))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED
    client("iam").delete_role_policy(RoleName=name, PolicyName="inline")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == DENIED


def test_get_caller_identity_is_always_allowed(role: Role) -> None:
    assert outcome(role(deny("*", "*"))("sts").get_caller_identity) == ALLOWED


@pytest.mark.parametrize("principal", ["operator", "adapter", "ec2"])
def test_principals_of_the_account_are_not_restricted(aws: EmulatedAws, bucket: str, principal: PrincipalName) -> None:
    s3 = aws.session(principal).client("s3", endpoint_url=aws.endpoint, config=CONFIG)
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED


# Unsupported policies


@pytest.mark.parametrize(
    "statement",
    [
        allow("s3:GetObject", "*", Condition={"NumericLessThan": {"aws:SecureTransport": "1"}}),
        allow("s3:GetObject", "*", Condition={"StringEquals": {"aws:SourceOrgID": "o-1"}}),
        allow("s3:GetObject", "*", Condition={"StringEquals": {"aws:ResourceTag/a": "b"}}),
        allow("s3:GetObject", "*", Condition={"Bool": {"aws:SecureTransport": "false", "aws:Unheard": "x"}}),
        allow("s3:GetObject", "arn:aws:s3:::authorized-*/${aws:username}/*"),
        deny("s3:GetObject", "*", Condition={"StringEquals": {"aws:SourceOrgID": "o-1"}}),
    ],
)
def test_unsupported_policy_is_an_error(role: Role, bucket: str, statement: Statement) -> None:
    s3 = role(allow("s3:GetObject", "*"), statement)("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == UNKNOWN


@pytest.mark.parametrize(
    "change", [{"Principal": {"CanonicalUser": "79a59df900b949e5"}}, {"Effect": "deny"}, {"NotPrincipal": "*"}]
)
def test_unsupported_bucket_policy_is_an_error(
    client: Client, role: Role, bucket: str, objects_arn: str, change: Statement
) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    policy = {"Version": "2012-10-17", "Statement": [deny("s3:GetObject", objects_arn, Principal="*") | change]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == UNKNOWN


def test_unsupported_statement_about_other_actions_is_ignored(role: Role, bucket: str) -> None:
    unknown = allow("s3:PutObject", "*", Condition={"StringEquals": {"aws:SourceOrgID": "o-1"}})
    s3 = role(allow("s3:GetObject", "*"), unknown)("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED


def test_action_with_unknown_resource_is_allowed_only_on_all(role: Role) -> None:
    ec2 = role(allow("ec2:DeleteVpc", "arn:aws:ec2:*:*:vpc/*"), allow("ec2:DeleteSubnet", "*"))("ec2")
    assert outcome(lambda: ec2.delete_vpc(VpcId="vpc-1")) == UNKNOWN
    assert outcome(lambda: ec2.delete_subnet(SubnetId="subnet-1"))[0] == "InvalidSubnetID.NotFound"


UNKNOWN_KEY_ERRORS: dict[str, tuple[Callable[[Any], Any], tuple[str, int]]] = {
    "s3": (lambda client: client.list_buckets(), ("InvalidAccessKeyId", 403)),
    "ec2": (lambda client: client.describe_vpcs(), ("AuthFailure", 401)),
    "ssm": (lambda client: client.get_parameter(Name="x"), ("UnrecognizedClientException", 400)),
    "autoscaling": (lambda client: client.describe_auto_scaling_groups(), ("InvalidClientTokenId", 403)),
    "sts": (lambda client: client.get_caller_identity(), ("InvalidClientTokenId", 403)),
}


@pytest.mark.parametrize("service", UNKNOWN_KEY_ERRORS)
def test_unknown_session_key_is_denied(aws: EmulatedAws, service: str) -> None:
    call, expected = UNKNOWN_KEY_ERRORS[service]
    keys = boto3.Session("ASIANOBODYWASGIVEN00", "secret", "token", region_name="us-east-1")
    client = keys.client(service, endpoint_url=aws.endpoint, config=CONFIG)
    assert outcome(lambda: call(client)) == expected


def test_journal_contains_the_role_of_a_session(aws: EmulatedAws, client: Client, role: Role, name: str) -> None:
    node = role(allow("ec2:DescribeVpcs", "*"))
    before = len(aws.journal())
    node("ec2").describe_vpcs()
    assert outcome(lambda: node("s3").list_buckets())[0] == "AccessDenied"
    client("ec2").describe_vpcs()
    assert [entry.role for entry in aws.journal()[before:]] == [name, name, None]
