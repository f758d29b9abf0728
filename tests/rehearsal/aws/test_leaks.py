"""Leaked keys and guardrails are in the account's resource list; retained resources are not leaks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.audit import leaked_resources
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network

TRUSTED = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "vpc-flow-logs.amazonaws.com"}}
FLOW_TRUST = json.dumps({"Version": "2012-10-17", "Statement": [TRUSTED]})
Make = Callable[[Client, Network, str], str]  # creates a resource and returns its id


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
    created = client("ec2").create_flow_logs(
        ResourceType="VPC",
        ResourceIds=[network.vpc],
        TrafficType="ALL",
        LogDestination=f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:{log_group(client, network, name)}",
        DeliverLogsPermissionArn=role,
    )
    return str(created["FlowLogIds"][0])


def topic(client: Client, network: Network, name: str) -> str:
    return str(client("sns").create_topic(Name=name)["TopicArn"])


def subscription(client: Client, network: Network, name: str) -> str:
    created = client("sns").subscribe(
        TopicArn=topic(client, network, name), Protocol="email", Endpoint="a@b.c", ReturnSubscriptionArn=True
    )
    return str(created["SubscriptionArn"])


def alarm(client: Client, network: Network, name: str) -> str:
    client("cloudwatch").put_metric_alarm(
        AlarmName=name, EvaluationPeriods=1, ComparisonOperator="GreaterThanThreshold", MetricName="m", Namespace="n"
    )
    return name


def budget(client: Client, network: Network, name: str) -> str:
    limit = {"Amount": "1", "Unit": "USD"}
    budget_parameters = {"BudgetName": name, "BudgetType": "COST", "TimeUnit": "MONTHLY", "BudgetLimit": limit}
    client("budgets").create_budget(AccountId=ACCOUNT, Budget=budget_parameters)
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
def test_leaks_include_remaining_but_not_retained_resources(
    aws: EmulatedAws, client: Client, network: Network, name: str, kind: tuple[str, str]
) -> None:
    before = aws.list_resources()
    created = KINDS[kind](client, network, name)
    after = aws.list_resources()
    leaks = {(resource.service, resource.kind): resource.id for resource in leaked_resources(before, after, [])}
    assert leaks[kind].endswith(created)
    assert kind not in {(resource.service, resource.kind) for resource in leaked_resources(before, after, [created])}


DELETED: dict[str, tuple[Make, Callable[[Client, str], Any]]] = {
    "key": (key, lambda client, created: client("kms").schedule_key_deletion(KeyId=created)),
    "log group": (log_group, lambda client, created: client("logs").delete_log_group(logGroupName=created)),
    "topic": (topic, lambda client, created: client("sns").delete_topic(TopicArn=created)),
    "alarm": (alarm, lambda client, created: client("cloudwatch").delete_alarms(AlarmNames=[created])),
    "budget": (budget, lambda client, created: client("budgets").delete_budget(AccountId=ACCOUNT, BudgetName=created)),
}


@pytest.mark.parametrize("kind", DELETED)
def test_deleted_resources_are_not_leaks(
    aws: EmulatedAws, client: Client, network: Network, name: str, kind: str
) -> None:
    before = aws.list_resources()
    make, delete = DELETED[kind]
    delete(client, make(client, network, name))
    assert leaked_resources(before, aws.list_resources(), []) == []
