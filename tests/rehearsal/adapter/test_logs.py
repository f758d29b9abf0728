"""Handlers of CloudWatch log groups and VPC flow logs."""

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.managed_resource import ManagedResource

GROUP, FLOW_LOG = "aws:cloudwatch/logGroup:LogGroup", "aws:ec2/flowLog:FlowLog"


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def describe_group(name: str) -> dict[str, Any]:
    (result,) = boto3.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return dict(result)


@pytest.fixture
def key(account: EmulatedAccount) -> str:
    """ARN of a key that CloudWatch Logs may use for log groups with the prefix /keyed."""
    arns = {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/keyed/*"}}
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    logs = {"Service": "logs.us-east-1.amazonaws.com"}
    statement: dict[str, Any] = {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}
    policy = document({**statement, "Principal": root}, {**statement, "Principal": logs, "Condition": arns})
    return str(ManagedResource(account, "aws:kms/key:Key", policy=policy).outputs["arn"])


def test_log_group_is_created_updated_and_deleted(account: EmulatedAccount, key: str) -> None:
    logs = boto3.client("logs")
    created = ManagedResource(account, GROUP, name="/keyed/a", retentionInDays=30, tags={"a": "1", "b": "2"})
    arn = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/keyed/a"
    assert (created.id, created.outputs) == ("/keyed/a", {"name": "/keyed/a", "arn": arn})
    assert describe_group("/keyed/a")["retentionInDays"] == 30
    created.update(name="/keyed/a", retentionInDays=7, kmsKeyId=key, tags={"b": "3"})
    described = describe_group("/keyed/a")
    assert (described["retentionInDays"], described["kmsKeyId"]) == (7, key)
    assert logs.list_tags_for_resource(resourceArn=arn)["tags"] == {"b": "3"}
    created.update(name="/keyed/a")
    assert not {"retentionInDays", "kmsKeyId"} & describe_group("/keyed/a").keys()
    created.delete()
    assert logs.describe_log_groups(logGroupNamePrefix="/keyed/a")["logGroups"] == []
    created.delete()


def test_log_group_needs_permission_for_the_key(account: EmulatedAccount, key: str) -> None:
    with pytest.raises(ClientError, match=r"AccessDenied.*not allowed to be used with Arn .*:log-group:/other'"):
        ManagedResource(account, GROUP, name="/other", kmsKeyId=key)
    boto3.client("kms").disable_key(KeyId=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        ManagedResource(account, GROUP, name="/keyed/b", kmsKeyId=key)


def role(account: EmulatedAccount, principal: dict[str, Any], **fields: Any) -> str:
    trust = document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": principal, **fields})
    return str(ManagedResource(account, "aws:iam/role:Role", assumeRolePolicy=trust).outputs["arn"])


@pytest.fixture
def flow(account: EmulatedAccount) -> dict[str, Any]:
    """Inputs of a flow log, without the role."""
    vpc = boto3.client("ec2").create_vpc(CidrBlock="10.3.0.0/16")["Vpc"]["VpcId"]
    return {
        "vpcId": vpc,
        "trafficType": "REJECT",
        "logDestinationType": "cloud-watch-logs",
        "logDestination": ManagedResource(account, GROUP, name=f"/flow/{vpc}").outputs["arn"],
        "maxAggregationInterval": 60,
    }


SERVICE = {"Service": "vpc-flow-logs.amazonaws.com"}


@pytest.mark.parametrize(
    "condition",
    [
        {},
        {
            "StringEquals": {"aws:SourceAccount": ACCOUNT},
            "ArnLike": {"aws:SourceArn": f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc-flow-log/*"},
        },
    ],
)
def test_flow_log_is_created_updated_and_deleted(
    account: EmulatedAccount, flow: dict[str, Any], condition: dict[str, Any]
) -> None:
    ec2, role_arn = boto3.client("ec2"), role(account, SERVICE, Condition=condition)
    created = ManagedResource(account, FLOW_LOG, **flow, iamRoleArn=role_arn, tags={"a": "1"})
    assert created.outputs["arn"] == f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc-flow-log/{created.id}"
    (described,) = ec2.describe_flow_logs(FlowLogIds=[created.id])["FlowLogs"]
    assert (described["DeliverLogsStatus"], described["MaxAggregationInterval"], described["TrafficType"]) == (
        "SUCCESS",
        60,
        "REJECT",
    )
    created.update(**flow, iamRoleArn=role_arn, tags={"b": "2"})
    assert ec2.describe_flow_logs(FlowLogIds=[created.id])["FlowLogs"][0]["Tags"] == [{"Key": "b", "Value": "2"}]
    created.delete()
    assert ec2.describe_flow_logs(FlowLogIds=[created.id])["FlowLogs"] == []


@pytest.mark.parametrize(
    ("principal", "condition"),
    [
        ({"Service": "ec2.amazonaws.com"}, {}),
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, {}),
        (SERVICE, {"StringEquals": {"aws:SourceAccount": "999999999999"}}),
    ],
)
def test_flow_log_needs_a_role_that_the_service_can_assume(
    account: EmulatedAccount, flow: dict[str, Any], principal: dict[str, Any], condition: dict[str, Any]
) -> None:
    role_arn = role(account, principal, Condition=condition)
    with pytest.raises(ClientError, match=f"InvalidParameter.*Unable to assume given IAM role: '{role_arn}'"):
        ManagedResource(account, FLOW_LOG, **flow, iamRoleArn=role_arn)


def test_flow_log_reports_a_missing_log_group(account: EmulatedAccount, flow: dict[str, Any]) -> None:
    inputs = {**flow, "logDestination": f"{flow['logDestination']}-missing"}
    created = ManagedResource(account, FLOW_LOG, **inputs, iamRoleArn=role(account, SERVICE))
    (described,) = boto3.client("ec2").describe_flow_logs(FlowLogIds=[created.id])["FlowLogs"]
    assert (described["DeliverLogsStatus"], described["DeliverLogsErrorMessage"]) == ("FAILED", "Access error")
