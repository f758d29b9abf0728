"""IAM roles and instance profiles, as the Pulumi program uses them."""

import json

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.aws.conftest import Client

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}],
    }
)
MANAGED = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"


def test_role_stores_the_policies(client: Client, name: str) -> None:
    iam = client("iam")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST, Tags=[{"Key": "a", "Value": "b"}])
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
    iam.put_role_policy(RoleName=name, PolicyName="data", PolicyDocument=json.dumps(document))
    iam.attach_role_policy(RoleName=name, PolicyArn=MANAGED)
    assert iam.get_role_policy(RoleName=name, PolicyName="data")["PolicyDocument"] == document
    attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    assert [each["PolicyArn"] for each in attached] == [MANAGED]
    assert iam.get_role(RoleName=name)["Role"]["Tags"] == [{"Key": "a", "Value": "b"}]


def test_unknown_managed_policy_is_not_attached(client: Client, name: str) -> None:
    client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    with pytest.raises(ClientError, match="NoSuchEntity"):
        client("iam").attach_role_policy(RoleName=name, PolicyArn=f"{MANAGED}NotThere")


def test_role_is_deleted_after_the_dependencies(client: Client, name: str) -> None:
    iam = client("iam")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    iam.attach_role_policy(RoleName=name, PolicyArn=MANAGED)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
    with pytest.raises(ClientError, match="DeleteConflict"):
        iam.delete_role(RoleName=name)
    with pytest.raises(ClientError, match="DeleteConflict"):
        iam.delete_instance_profile(InstanceProfileName=name)
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.detach_role_policy(RoleName=name, PolicyArn=MANAGED)
    iam.delete_role(RoleName=name)
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.get_role(RoleName=name)
