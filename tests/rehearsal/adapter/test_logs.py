"""Log groups and flow logs through their handlers."""

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.adapter.account import Adapter
from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.adapter.made import Made

GROUP, FLOW_LOG = "aws:cloudwatch/logGroup:LogGroup", "aws:ec2/flowLog:FlowLog"


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def group_told(name: str) -> dict[str, Any]:
    (found,) = boto3.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return dict(found)


@pytest.fixture
def key(account: Adapter) -> str:
    """ARN of a key that CloudWatch Logs may use for groups below /keyed."""
    arns = {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/keyed/*"}}
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    logs = {"Service": "logs.us-east-1.amazonaws.com"}
    every: dict[str, Any] = {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}
    policy = document({**every, "Principal": root}, {**every, "Principal": logs, "Condition": arns})
    return str(Made(account, "aws:kms/key:Key", policy=policy).outputs["arn"])


def test_a_log_group_is_made_changed_and_deleted(account: Adapter, key: str) -> None:
    logs = boto3.client("logs")
    made = Made(account, GROUP, name="/keyed/a", retentionInDays=30, tags={"a": "1", "b": "2"})
    arn = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/keyed/a"
    assert (made.id, made.outputs) == ("/keyed/a", {"name": "/keyed/a", "arn": arn})
    assert group_told("/keyed/a")["retentionInDays"] == 30
    made.update(name="/keyed/a", retentionInDays=7, kmsKeyId=key, tags={"b": "3"})
    told = group_told("/keyed/a")
    assert (told["retentionInDays"], told["kmsKeyId"]) == (7, key)
    assert logs.list_tags_for_resource(resourceArn=arn)["tags"] == {"b": "3"}
    made.update(name="/keyed/a")
    assert not {"retentionInDays", "kmsKeyId"} & group_told("/keyed/a").keys()
    made.delete()
    assert logs.describe_log_groups(logGroupNamePrefix="/keyed/a")["logGroups"] == []
    made.delete()


def test_a_key_that_is_not_open_to_the_group_is_refused(account: Adapter, key: str) -> None:
    with pytest.raises(ClientError, match=r"AccessDenied.*not allowed to be used with Arn .*:log-group:/other'"):
        Made(account, GROUP, name="/other", kmsKeyId=key)
    boto3.client("kms").disable_key(KeyId=key)
    with pytest.raises(ClientError, match="AccessDenied"):
        Made(account, GROUP, name="/keyed/b", kmsKeyId=key)


def role(account: Adapter, trusted: dict[str, Any], **more: Any) -> str:
    trust = document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": trusted, **more})
    return str(Made(account, "aws:iam/role:Role", assumeRolePolicy=trust).outputs["arn"])


@pytest.fixture
def flow(account: Adapter) -> dict[str, Any]:
    """Inputs of a flow log but for its role."""
    vpc = boto3.client("ec2").create_vpc(CidrBlock="10.3.0.0/16")["Vpc"]["VpcId"]
    return {
        "vpcId": vpc,
        "trafficType": "REJECT",
        "logDestinationType": "cloud-watch-logs",
        "logDestination": Made(account, GROUP, name=f"/flow/{vpc}").outputs["arn"],
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
def test_a_flow_log_delivers_and_goes(account: Adapter, flow: dict[str, Any], condition: dict[str, Any]) -> None:
    ec2, by = boto3.client("ec2"), role(account, SERVICE, Condition=condition)
    made = Made(account, FLOW_LOG, **flow, iamRoleArn=by, tags={"a": "1"})
    assert made.outputs["arn"] == f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc-flow-log/{made.id}"
    (told,) = ec2.describe_flow_logs(FlowLogIds=[made.id])["FlowLogs"]
    assert (told["DeliverLogsStatus"], told["MaxAggregationInterval"], told["TrafficType"]) == ("SUCCESS", 60, "REJECT")
    made.update(**flow, iamRoleArn=by, tags={"b": "2"})
    assert ec2.describe_flow_logs(FlowLogIds=[made.id])["FlowLogs"][0]["Tags"] == [{"Key": "b", "Value": "2"}]
    made.delete()
    assert ec2.describe_flow_logs(FlowLogIds=[made.id])["FlowLogs"] == []


@pytest.mark.parametrize(
    ("trusted", "condition"),
    [
        ({"Service": "ec2.amazonaws.com"}, {}),
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, {}),
        (SERVICE, {"StringEquals": {"aws:SourceAccount": "999999999999"}}),
    ],
)
def test_a_role_that_flow_logs_may_not_assume_is_refused(
    account: Adapter, flow: dict[str, Any], trusted: dict[str, Any], condition: dict[str, Any]
) -> None:
    by = role(account, trusted, Condition=condition)
    with pytest.raises(ClientError, match=f"InvalidParameter.*Unable to assume given IAM role: '{by}'"):
        Made(account, FLOW_LOG, **flow, iamRoleArn=by)


def test_flow_logs_of_a_group_that_is_not_there_tell_it(account: Adapter, flow: dict[str, Any]) -> None:
    lost = {**flow, "logDestination": f"{flow['logDestination']}-lost"}
    made = Made(account, FLOW_LOG, **lost, iamRoleArn=role(account, SERVICE))
    (told,) = boto3.client("ec2").describe_flow_logs(FlowLogIds=[made.id])["FlowLogs"]
    assert (told["DeliverLogsStatus"], told["DeliverLogsErrorMessage"]) == ("FAILED", "Access error")
