"""The rights of roles, as a user of AWS meets them."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
import urllib3
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.test_identity import TRUST

Statement = dict[str, Any]
Clients = Callable[..., Any]
Role = Callable[..., Clients]
CONFIG = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})


def allow(actions: str | list[str], resources: str | list[str], **more: Any) -> Statement:
    return {"Effect": "Allow", "Action": actions, "Resource": resources, **more}


def deny(actions: str | list[str], resources: str | list[str], **more: Any) -> Statement:
    return {**allow(actions, resources, **more), "Effect": "Deny"}


def answer(call: Callable[[], Any]) -> tuple[str | None, int]:
    """Error code, if any, and HTTP status."""
    try:
        return None, int(call()["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        return str(error.response["Error"]["Code"]), int(error.response["ResponseMetadata"]["HTTPStatusCode"])


ALLOWED, DENIED = (None, 200), ("AccessDenied", 403)
UNKNOWN = ("NotImplemented", 501)


def session(aws: EmulatedAws, client: Client, role: str, **given: Any) -> Clients:
    """Clients of a session of this role."""
    arn = f"arn:aws:iam::123456789012:role/{role}"
    made = client("sts").assume_role(RoleArn=arn, RoleSessionName="i-1", **given)["Credentials"]
    keys = boto3.Session(made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"], region_name="us-east-1")

    def of(service: str, more: Config | None = None) -> Any:
        return keys.client(service, endpoint_url=aws.endpoint, config=CONFIG.merge(more) if more else CONFIG)

    return of


@pytest.fixture
def role(aws: EmulatedAws, client: Client, name: str) -> Role:
    """Makes a role with these statements; clients of a session of it."""

    def make(*statements: Statement, managed: str | None = None) -> Clients:
        iam, document = client("iam"), {"Version": "2012-10-17", "Statement": list(statements)}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(document))
        if managed:
            iam.attach_role_policy(RoleName=name, PolicyArn=managed)
        return session(aws, client, name)

    return make


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    """A bucket with the objects `own/x` and `other/x`."""
    bucket = f"rights-{name}"
    client("s3").create_bucket(Bucket=bucket)
    for key in ("own/x", "other/x"):
        client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")
    return bucket


@pytest.fixture
def own(bucket: str) -> str:
    """The objects below `own/`, as a policy names them."""
    return f"arn:aws:s3:::{bucket}/own/*"


# S3


def test_a_role_without_policies_may_nothing(role: Role, bucket: str) -> None:
    s3 = role()("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == DENIED
    assert answer(lambda: s3.list_objects_v2(Bucket=bucket)) == DENIED
    assert answer(s3.list_buckets) == DENIED


def test_rights_end_at_the_prefix(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow(["s3:GetObject", "s3:PutObject"], own))("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED
    assert answer(lambda: s3.put_object(Bucket=bucket, Key="own/y", Body=b"")) == ALLOWED
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == DENIED
    assert answer(lambda: s3.put_object(Bucket=bucket, Key="other/y", Body=b"")) == DENIED


def test_rights_end_at_the_bucket(client: Client, role: Role, bucket: str, own: str) -> None:
    client("s3").create_bucket(Bucket=f"{bucket}-next")
    client("s3").put_object(Bucket=f"{bucket}-next", Key="own/x", Body=b"x")
    s3 = role(allow("s3:*", [own, f"arn:aws:s3:::{bucket}"]))("s3")
    assert answer(lambda: s3.get_object(Bucket=f"{bucket}-next", Key="own/x")) == DENIED
    assert answer(lambda: s3.list_objects_v2(Bucket=f"{bucket}-next")) == DENIED


def test_what_is_denied_changes_nothing_and_is_in_the_journal(
    aws: EmulatedAws, client: Client, role: Role, bucket: str, own: str
) -> None:
    s3 = role(allow("s3:GetObject", own))("s3")
    assert answer(lambda: s3.delete_object(Bucket=bucket, Key="own/x")) == DENIED
    entry = aws.journal()[-1]
    assert (entry.operation, entry.status, entry.error_code) == ("DeleteObject", 403, "AccessDenied")
    assert "assumed-role" in str(entry.error_message)
    assert f"s3:DeleteObject on resource: {own[:-1]}x" in str(entry.error_message)
    assert client("s3").get_object(Bucket=bucket, Key="own/x")["Body"].read() == b"x"


def test_an_explicit_denial_wins(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:*", "*"), deny("s3:Put*", own))("s3")
    assert answer(lambda: s3.put_object(Bucket=bucket, Key="own/x", Body=b"")) == DENIED
    assert answer(lambda: s3.put_object(Bucket=bucket, Key="other/x", Body=b"")) == ALLOWED


@pytest.mark.parametrize(
    ("statement", "answers"),
    [
        (allow("S3:getobject", "*"), ALLOWED),
        (allow("s3:Get?bject", "*"), ALLOWED),
        (allow("*", "arn:aws:s3:::rights-*/o?n/x"), ALLOWED),
        (allow("s3:GetObject", "arn:aws:s3:::RIGHTS-*"), DENIED),
        ({"Effect": "Allow", "NotAction": "s3:Put*", "Resource": "*"}, ALLOWED),
        ({"Effect": "Allow", "NotAction": "s3:Get*", "Resource": "*"}, DENIED),
        ({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::*/own/*"}, DENIED),
        ({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::*/other/*"}, ALLOWED),
    ],
)
def test_statements_match_as_they_do_in_aws(
    role: Role, bucket: str, statement: Statement, answers: tuple[str | None, int]
) -> None:
    s3 = role(statement)("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == answers


def test_a_head_is_a_read(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:GetObject", own))("s3")
    assert answer(lambda: s3.head_object(Bucket=bucket, Key="own/x")) == ALLOWED
    assert answer(lambda: s3.head_object(Bucket=bucket, Key="other/x")) == ("403", 403)


def test_who_may_not_list_is_not_told_what_is_missing(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:GetObject", own))("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/none")) == DENIED


def test_who_may_list_is_told_what_is_missing(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:GetObject", own), allow("s3:ListBucket", own.removesuffix("/own/*")))("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/none")) == ("NoSuchKey", 404)


@pytest.mark.parametrize("operator", ["StringEquals", "StringLike"])
def test_a_list_right_ends_at_the_prefix_of_its_condition(role: Role, bucket: str, operator: str) -> None:
    condition = {operator: {"s3:prefix": "own/" if operator == "StringEquals" else "own/*"}}
    s3 = role(allow("s3:ListBucket", f"arn:aws:s3:::{bucket}", Condition=condition))("s3")
    assert answer(lambda: s3.list_objects_v2(Bucket=bucket, Prefix="own/")) == ALLOWED
    assert answer(lambda: s3.list_objects_v2(Bucket=bucket, Prefix="other/")) == DENIED
    assert answer(lambda: s3.list_objects_v2(Bucket=bucket)) == DENIED


def test_a_copy_reads_its_source_and_writes_its_target(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow(["s3:GetObject", "s3:PutObject"], own), allow("s3:GetObject", f"arn:aws:s3:::{bucket}/read/*"))(
        "s3"
    )

    def copy(source: str, target: str) -> tuple[str | None, int]:
        return answer(lambda: s3.copy_object(Bucket=bucket, Key=target, CopySource=f"{bucket}/{source}"))

    assert copy("own/x", "own/y") == ALLOWED
    assert copy("other/x", "own/y") == DENIED
    assert copy("own/x", "read/y") == DENIED


def test_the_tags_of_what_is_copied_need_rights_of_their_own(client: Client, role: Role, bucket: str, own: str) -> None:
    client("s3").put_object(Bucket=bucket, Key="own/tagged", Body=b"", Tagging="a=b")
    s3 = role(allow(["s3:GetObject", "s3:PutObject"], own))("s3")
    copy = {"Bucket": bucket, "Key": "own/y", "CopySource": f"{bucket}/own/tagged"}
    assert answer(lambda: s3.copy_object(**copy)) == DENIED
    assert answer(lambda: s3.copy_object(**copy, TaggingDirective="REPLACE")) == ALLOWED


def test_an_upload_in_parts_is_a_write(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:PutObject", own))("s3")
    assert answer(lambda: s3.create_multipart_upload(Bucket=bucket, Key="other/big")) == DENIED
    which = {"Bucket": bucket, "Key": "own/big"}
    upload = {**which, "UploadId": s3.create_multipart_upload(**which)["UploadId"]}
    part = s3.upload_part(**upload, PartNumber=1, Body=b"x")["ETag"]
    assert answer(lambda: s3.list_parts(**upload)) == DENIED
    assert answer(lambda: s3.abort_multipart_upload(**upload)) == DENIED
    assert answer(lambda: s3.list_multipart_uploads(Bucket=bucket)) == DENIED
    whole = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    assert answer(lambda: s3.complete_multipart_upload(**upload, MultipartUpload=whole)) == ALLOWED


def test_an_upload_is_aborted_by_its_own_right(role: Role, bucket: str, own: str) -> None:
    s3 = role(allow(["s3:PutObject", "s3:AbortMultipartUpload"], own))("s3")
    which = {"Bucket": bucket, "Key": "own/big"}
    upload = s3.create_multipart_upload(**which)["UploadId"]
    assert answer(lambda: s3.abort_multipart_upload(**which, UploadId=upload)) == (None, 204)


def test_of_many_objects_those_are_deleted_that_may_be(client: Client, role: Role, bucket: str, own: str) -> None:
    s3 = role(allow("s3:DeleteObject", own))("s3")
    told = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "own/x"}, {"Key": "other/x"}]})
    assert [each["Key"] for each in told["Deleted"]] == ["own/x"]
    assert [(each["Key"], each["Code"]) for each in told["Errors"]] == [("other/x", "AccessDenied")]
    assert [each["Key"] for each in client("s3").list_objects_v2(Bucket=bucket)["Contents"]] == ["other/x"]


def test_a_version_needs_the_right_to_versions(client: Client, role: Role, bucket: str, own: str) -> None:
    client("s3").put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    which = {"Bucket": bucket, "Key": "own/x"}
    which["VersionId"] = client("s3").put_object(**which, Body=b"new")["VersionId"]
    s3 = role(allow(["s3:GetObject", "s3:DeleteObject"], own))("s3")
    assert answer(lambda: s3.get_object(**which)) == DENIED
    assert answer(lambda: s3.delete_object(**which)) == DENIED


def test_the_tags_of_an_object_are_put_by_a_right_of_their_own(
    role: Role, client: Client, bucket: str, own: str
) -> None:
    tags = {"Tagging": {"TagSet": [{"Key": "trainyard:keep", "Value": "no"}]}}
    s3 = role(allow("s3:PutObject", "*"), allow("s3:PutObjectTagging", own))("s3")
    assert answer(lambda: s3.put_object_tagging(Bucket=bucket, Key="own/x", **tags)) == ALLOWED
    assert answer(lambda: s3.put_object_tagging(Bucket=bucket, Key="other/x", **tags)) == DENIED


def test_a_policy_of_the_bucket_denies_what_the_role_s_allows(
    client: Client, role: Role, bucket: str, own: str
) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    policy = {"Version": "2012-10-17", "Statement": [deny("s3:GetObject*", own, Principal="*")]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == DENIED
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == ALLOWED


def test_a_policy_of_the_bucket_allows_what_the_role_s_does_not(
    client: Client, role: Role, bucket: str, own: str
) -> None:
    s3 = role()("s3")
    policy = {"Version": "2012-10-17", "Statement": [allow("s3:GetObject", own, Principal={"AWS": "*"})]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == DENIED


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_signed_address_has_the_rights_of_who_signed_it(role: Role, bucket: str, own: str, version: str) -> None:
    s3 = role(allow("s3:GetObject", own))("s3", Config(signature_version=version))

    def get(key: str) -> int:
        address = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
        return urllib3.request("GET", address).status

    assert (get("own/x"), get("other/x")) == (200, 403)


# KMS


@pytest.fixture
def key(client: Client) -> str:
    return str(client("kms").create_key()["KeyMetadata"]["Arn"])


@pytest.fixture
def encrypted(client: Client, bucket: str, key: str) -> str:
    """The bucket, with this key as its default from the object `own/secret` on."""
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    client("s3").put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    client("s3").put_object(Bucket=bucket, Key="own/secret", Body=b"x")
    return bucket


def test_what_is_encrypted_needs_the_rights_to_its_key(role: Role, encrypted: str) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    assert answer(lambda: s3.get_object(Bucket=encrypted, Key="own/secret")) == DENIED
    assert answer(lambda: s3.put_object(Bucket=encrypted, Key="own/y", Body=b"")) == DENIED
    assert answer(lambda: s3.create_multipart_upload(Bucket=encrypted, Key="own/y")) == DENIED
    copy = f"{encrypted}/own/x"
    assert answer(lambda: s3.copy_object(Bucket=encrypted, Key="own/y", CopySource=copy)) == DENIED
    assert answer(lambda: s3.head_object(Bucket=encrypted, Key="own/y"))[1] == 404


def test_a_key_s_rights_are_apart(role: Role, encrypted: str, key: str) -> None:
    through = {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}
    s3 = role(allow("s3:*", "*"), allow("kms:GenerateDataKey", key, Condition=through))("s3")
    assert answer(lambda: s3.put_object(Bucket=encrypted, Key="own/y", Body=b"")) == ALLOWED
    assert answer(lambda: s3.get_object(Bucket=encrypted, Key="own/y")) == DENIED
    assert answer(lambda: s3.create_multipart_upload(Bucket=encrypted, Key="own/y")) == DENIED


# Other services


@pytest.fixture
def tagged(group: Callable[..., str]) -> str:
    """A group of the stack `mine`."""
    return group(Tags=[{"Key": "stack", "Value": "mine", "PropagateAtLaunch": True}])


@pytest.mark.parametrize(("stack", "answers"), [("mine", ALLOWED), ("another", DENIED)])
def test_a_group_is_resized_by_its_tags(
    client: Client, role: Role, tagged: str, stack: str, answers: tuple[str | None, int]
) -> None:
    condition = {"StringEquals": {"aws:ResourceTag/stack": stack}}
    scaling = role(allow("autoscaling:SetDesiredCapacity", "*", Condition=condition))("autoscaling")
    resize = {"AutoScalingGroupName": tagged, "DesiredCapacity": 1}
    assert answer(lambda: scaling.set_desired_capacity(**resize)) == answers
    (found,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[tagged])["AutoScalingGroups"]
    assert found["DesiredCapacity"] == (answers == ALLOWED)


def test_a_group_s_tags_are_those_of_now(client: Client, role: Role, tagged: str) -> None:
    condition = {"StringEquals": {"autoscaling:ResourceTag/stack": "mine"}}
    scaling = role(allow("autoscaling:SuspendProcesses", "*", Condition=condition))("autoscaling")
    assert answer(lambda: scaling.suspend_processes(AutoScalingGroupName=tagged)) == ALLOWED
    tag = {"ResourceId": tagged, "ResourceType": "auto-scaling-group", "Key": "stack", "PropagateAtLaunch": False}
    client("autoscaling").create_or_update_tags(Tags=[{**tag, "Value": "another"}])
    assert answer(lambda: scaling.suspend_processes(AutoScalingGroupName=tagged)) == DENIED


def test_no_tag_speaks_for_a_group_that_is_not_there(role: Role) -> None:
    condition = {"StringEquals": {"aws:ResourceTag/stack": "mine"}}
    scaling = role(allow("autoscaling:*", "*", Condition=condition))("autoscaling")
    assert answer(lambda: scaling.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=0)) == DENIED
    assert answer(scaling.describe_auto_scaling_groups) == DENIED


def test_a_group_is_named_by_its_arn(role: Role, tagged: str) -> None:
    arn = f"arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/{tagged}"
    scaling = role(allow("autoscaling:*", arn))("autoscaling")
    assert answer(lambda: scaling.set_desired_capacity(AutoScalingGroupName=tagged, DesiredCapacity=0)) == ALLOWED
    assert answer(scaling.describe_auto_scaling_groups) == DENIED  # it knows * only


def test_a_parameter_is_named_by_its_arn(client: Client, role: Role, name: str) -> None:
    for path in ("own", "other"):
        client("ssm").put_parameter(Name=f"/{name}/{path}", Value="x", Type="SecureString")
    ssm = role(allow("ssm:GetParameter*", f"arn:aws:ssm:us-east-1:123456789012:parameter/{name}/own"))("ssm")
    assert answer(lambda: ssm.get_parameter(Name=f"/{name}/own", WithDecryption=True)) == ALLOWED
    refused = ("AccessDeniedException", 400)
    assert answer(lambda: ssm.get_parameter(Name=f"/{name}/other")) == refused
    assert answer(lambda: ssm.get_parameters(Names=[f"/{name}/own", f"/{name}/other"])) == refused


def test_a_parameter_under_a_key_needs_the_right_to_it(client: Client, role: Role, name: str, key: str) -> None:
    client("ssm").put_parameter(Name=name, Value="x", Type="SecureString", KeyId=key)
    ssm = role(allow("ssm:GetParameter", "*"))("ssm")
    assert answer(lambda: ssm.get_parameter(Name=name, WithDecryption=True)) == ("AccessDeniedException", 400)
    assert answer(lambda: ssm.get_parameter(Name=name)) == ALLOWED


def test_ec2_denies_in_its_own_words(role: Role) -> None:
    ec2 = role(allow("ec2:DescribeVpcs", "*"))("ec2")
    assert answer(ec2.describe_vpcs) == ALLOWED
    assert answer(ec2.describe_subnets) == ("UnauthorizedOperation", 403)
    assert answer(lambda: ec2.terminate_instances(InstanceIds=["i-1"])) == ("UnauthorizedOperation", 403)


def test_a_managed_policy_counts(client: Client, role: Role, name: str) -> None:
    client("ssm").put_parameter(Name=name, Value="x", Type="String")
    clients = role(managed="arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
    assert answer(lambda: clients("ssm").get_parameter(Name=name)) == ALLOWED
    assert answer(lambda: clients("ssm").delete_parameter(Name=name)) == ("AccessDeniedException", 400)


def test_of_a_managed_policy_the_default_version_counts(client: Client, role: Role, name: str, bucket: str) -> None:
    def document(action: str) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": allow(action, "*")})

    iam = client("iam")
    policy = iam.create_policy(PolicyName=name, PolicyDocument=document("s3:GetObject"))["Policy"]["Arn"]
    s3 = role(managed=policy)("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED
    iam.create_policy_version(PolicyArn=policy, PolicyDocument=document("s3:PutObject"), SetAsDefault=True)
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == DENIED


def test_a_change_of_the_policy_counts_at_once(client: Client, role: Role, name: str, bucket: str) -> None:
    s3 = role(allow("s3:GetObject", "*"))("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED
    client("iam").delete_role_policy(RoleName=name, PolicyName="own")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == DENIED


def test_everyone_may_ask_who_they_are(role: Role) -> None:
    assert answer(role(deny("*", "*"))("sts").get_caller_identity) == ALLOWED


def test_other_keys_and_unsigned_calls_are_not_restricted(aws: EmulatedAws, client: Client, bucket: str) -> None:
    other = boto3.Session("AKIAANOTHEROPERATORS", "secret", region_name="us-east-1")
    s3 = other.client("s3", endpoint_url=aws.endpoint, config=CONFIG)
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED
    assert answer(lambda: client("s3").get_object(Bucket=bucket, Key="own/x")) == ALLOWED


# What can't be judged


@pytest.mark.parametrize(
    "statement",
    [
        allow("s3:GetObject", "*", Condition={"NumericLessThan": {"aws:SecureTransport": "1"}}),
        allow("s3:GetObject", "*", Condition={"StringEquals": {"aws:SourceVpc": "vpc-1"}}),
        allow("s3:GetObject", "*", Condition={"StringEquals": {"aws:ResourceTag/a": "b"}}),
        allow("s3:GetObject", "*", Condition={"Bool": {"aws:SecureTransport": "false", "aws:Unheard": "x"}}),
        allow("s3:GetObject", "arn:aws:s3:::rights-*/${aws:username}/*"),
        deny("s3:GetObject", "*", Condition={"StringEquals": {"aws:SourceVpc": "vpc-1"}}),
    ],
)
def test_what_is_not_understood_is_an_error_and_no_grant(role: Role, bucket: str, statement: Statement) -> None:
    s3 = role(allow("s3:GetObject", "*"), statement)("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == UNKNOWN


@pytest.mark.parametrize(
    "change", [{"Principal": {"CanonicalUser": "79a59df900b949e5"}}, {"Effect": "deny"}, {"NotPrincipal": "*"}]
)
def test_a_policy_of_the_bucket_that_is_not_understood_is_an_error(
    client: Client, role: Role, bucket: str, own: str, change: Statement
) -> None:
    s3 = role(allow("s3:*", "*"))("s3")
    policy = {"Version": "2012-10-17", "Statement": [deny("s3:GetObject", own, Principal="*") | change]}
    client("s3").put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == UNKNOWN


def test_a_statement_about_other_actions_need_not_be_understood(role: Role, bucket: str) -> None:
    unknown = allow("s3:PutObject", "*", Condition={"StringEquals": {"aws:SourceVpc": "vpc-1"}})
    s3 = role(allow("s3:GetObject", "*"), unknown)("s3")
    assert answer(lambda: s3.get_object(Bucket=bucket, Key="own/x")) == ALLOWED


def test_an_action_whose_resource_is_not_known_is_granted_on_all_only(role: Role) -> None:
    ec2 = role(allow("ec2:DeleteVpc", "arn:aws:ec2:*:*:vpc/*"), allow("ec2:DeleteSubnet", "*"))("ec2")
    assert answer(lambda: ec2.delete_vpc(VpcId="vpc-1")) == UNKNOWN
    assert answer(lambda: ec2.delete_subnet(SubnetId="subnet-1"))[0] == "InvalidSubnetID.NotFound"


def test_bounds_that_are_not_looked_at_are_an_error(
    aws: EmulatedAws, client: Client, role: Role, name: str, bucket: str
) -> None:
    role(allow("s3:GetObject", "*"))
    policy = json.dumps({"Version": "2012-10-17", "Statement": deny("*", "*")})
    bounded = session(aws, client, name, Policy=policy)("s3")
    assert answer(lambda: bounded.get_object(Bucket=bucket, Key="own/x")) == UNKNOWN


UNGIVEN: dict[str, tuple[Callable[[Any], Any], tuple[str, int]]] = {
    "s3": (lambda client: client.list_buckets(), ("InvalidAccessKeyId", 403)),
    "ec2": (lambda client: client.describe_vpcs(), ("AuthFailure", 401)),
    "ssm": (lambda client: client.get_parameter(Name="x"), ("UnrecognizedClientException", 400)),
    "autoscaling": (lambda client: client.describe_auto_scaling_groups(), ("InvalidClientTokenId", 403)),
    "sts": (lambda client: client.get_caller_identity(), ("InvalidClientTokenId", 403)),
}


@pytest.mark.parametrize("service", UNGIVEN)
def test_a_session_key_that_nobody_was_given_may_nothing(aws: EmulatedAws, service: str) -> None:
    call, told = UNGIVEN[service]
    keys = boto3.Session("ASIANOBODYWASGIVEN00", "secret", "token", region_name="us-east-1")
    client = keys.client(service, endpoint_url=aws.endpoint, config=CONFIG)
    assert answer(lambda: call(client)) == told


def test_the_journal_names_the_role_of_a_session(aws: EmulatedAws, client: Client, role: Role, name: str) -> None:
    node = role(allow("ec2:DescribeVpcs", "*"))
    before = len(aws.journal())
    node("ec2").describe_vpcs()
    assert answer(lambda: node("s3").list_buckets())[0] == "AccessDenied"
    client("ec2").describe_vpcs()
    assert [entry.role for entry in aws.journal()[before:]] == [name, name, None]
