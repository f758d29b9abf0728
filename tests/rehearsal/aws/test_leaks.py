"""What of keys and guardrails is left behind is found in the account's dump; what is kept on purpose is no leak."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.audit import leaked
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network

TRUSTED = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "vpc-flow-logs.amazonaws.com"}}
FLOW_TRUST = json.dumps({"Version": "2012-10-17", "Statement": [TRUSTED]})
Make = Callable[[Client, Network, str], str]  # makes a thing; its id, as a program knows it


def key(client: Client, network: Network, name: str) -> str:
    return str(client("kms").create_key()["KeyMetadata"]["KeyId"])


def alias(client: Client, network: Network, name: str) -> str:
    client("kms").create_alias(AliasName=f"alias/{name}", TargetKeyId=key(client, network, name))
    return f"alias/{name}"


def log_group(client: Client, network: Network, name: str) -> str:
    client("logs").create_log_group(logGroupName=f"/leak/{name}")
    return f"/leak/{name}"


def flow_log(client: Client, network: Network, name: str) -> str:
    role = client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=FLOW_TRUST)["Role"]["Arn"]
    made = client("ec2").create_flow_logs(
        ResourceType="VPC",
        ResourceIds=[network.vpc],
        TrafficType="ALL",
        LogDestination=f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:{log_group(client, network, name)}",
        DeliverLogsPermissionArn=role,
    )
    return str(made["FlowLogIds"][0])


def topic(client: Client, network: Network, name: str) -> str:
    return str(client("sns").create_topic(Name=name)["TopicArn"])


def subscription(client: Client, network: Network, name: str) -> str:
    made = client("sns").subscribe(
        TopicArn=topic(client, network, name), Protocol="email", Endpoint="a@b.c", ReturnSubscriptionArn=True
    )
    return str(made["SubscriptionArn"])


def alarm(client: Client, network: Network, name: str) -> str:
    client("cloudwatch").put_metric_alarm(
        AlarmName=name, EvaluationPeriods=1, ComparisonOperator="GreaterThanThreshold", MetricName="m", Namespace="n"
    )
    return name


def budget(client: Client, network: Network, name: str) -> str:
    limit = {"Amount": "1", "Unit": "USD"}
    told = {"BudgetName": name, "BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": limit}
    client("budgets").create_budget(AccountId=ACCOUNT, Budget=told)
    return name


def policy(client: Client, network: Network, name: str) -> str:
    statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": statement})
    return str(client("iam").create_policy(PolicyName=name, PolicyDocument=document)["Policy"]["Arn"])


KINDS: dict[tuple[str, str], Make] = {
    ("kms", "key"): key,
    ("kms", "alias"): alias,
    ("logs", "log-group"): log_group,
    ("ec2", "flow-log"): flow_log,
    ("sns", "topic"): topic,
    ("sns", "subscription"): subscription,
    ("cloudwatch", "alarm"): alarm,
    ("budgets", "budget"): budget,
    ("iam", "policy"): policy,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_behind_is_found_and_what_is_kept_is_not(
    aws: EmulatedAws, client: Client, network: Network, name: str, kind: tuple[str, str]
) -> None:
    before = aws.dump()
    made = KINDS[kind](client, network, name)
    after = aws.dump()
    found = {(one.service, one.kind): one.id for one in leaked(before, after, [])}
    assert found[kind].endswith(made)
    assert kind not in {(one.service, one.kind) for one in leaked(before, after, [made])}


GONE: dict[str, tuple[Make, Callable[[Client, str], Any]]] = {
    "key": (key, lambda client, made: client("kms").schedule_key_deletion(KeyId=made)),
    "log group": (log_group, lambda client, made: client("logs").delete_log_group(logGroupName=made)),
    "topic": (topic, lambda client, made: client("sns").delete_topic(TopicArn=made)),
    "alarm": (alarm, lambda client, made: client("cloudwatch").delete_alarms(AlarmNames=[made])),
    "budget": (budget, lambda client, made: client("budgets").delete_budget(AccountId=ACCOUNT, BudgetName=made)),
}


@pytest.mark.parametrize("what", GONE)
def test_what_was_deleted_is_no_leak(aws: EmulatedAws, client: Client, network: Network, name: str, what: str) -> None:
    before = aws.dump()
    make, delete = GONE[what]
    delete(client, make(client, network, name))
    assert leaked(before, aws.dump(), []) == []
