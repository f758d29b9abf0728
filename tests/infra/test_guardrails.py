"""Topic, alarms and budget."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from tools.stack_files import read_stack_file

ALARM, BUDGET, TOPIC = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:budgets/budget:Budget", "aws:sns/topic:Topic"
SUBSCRIPTION = "aws:sns/topicSubscription:TopicSubscription"


def test_head_and_every_worker_group_have_an_alarm_on_their_status_checks(shipped: Deployment) -> None:
    monitored = {json.dumps(each.inputs["dimensions"]) for each in shipped.resources_of_type(ALARM)}
    groups = [shipped.exports["head_group"], *shipped.exports["groups"]]
    assert monitored == {json.dumps({"AutoScalingGroupName": name}) for name in groups}
    for alarm in shipped.resources_of_type(ALARM):
        assert alarm.inputs["metricName"] == "StatusCheckFailed"
        assert alarm.inputs["treatMissingData"] == "notBreaching"
        assert alarm.inputs["alarmActions"] == [shipped.resource(TOPIC, "guardrails-notifications").outputs["arn"]]


def test_topic_is_encrypted_and_limited_to_this_account(shipped: Deployment) -> None:
    topic = shipped.resource(TOPIC, "guardrails-notifications")
    assert topic.inputs["kmsMasterKeyId"] == shipped.resource("aws:kms/key:Key", "key-stack-key").outputs["arn"]
    (statement,) = json.loads(
        shipped.resource("aws:sns/topicPolicy:TopicPolicy", "guardrails-notifications").inputs["policy"]
    )["Statement"]
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    assert statement["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_key_allows_the_notification_services(shipped: Deployment) -> None:
    policy = json.loads(shipped.resource("aws:kms/key:Key", "key-stack-key").inputs["policy"])
    (statement,) = [each for each in policy["Statement"] if each["Sid"] == "Notifications"]
    assert statement["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_budget_covers_the_stack_and_the_maximum_cost(shipped: Deployment) -> None:
    budget = shipped.resource(BUDGET, "guardrails-budget").inputs
    assert float(budget["limitAmount"]) == shipped.exports["cost"]["max_run_usd"]
    assert budget["costFilters"] == [
        {"name": "TagKeyValue", "values": [f"user:trainyard:stack$trainyard/{shipped.stack}"]}
    ]
    assert {(each["threshold"], each["notificationType"]) for each in budget["notifications"]} == {
        (80, "ACTUAL"),
        (100, "ACTUAL"),
        (100, "FORECASTED"),
    }


def test_budget_is_configurable(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"budget_usd": 2500})
    assert run.resource(BUDGET, "guardrails-budget").inputs["limitAmount"] == "2500.00"


def test_budget_can_be_omitted(changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture) -> None:
    run = changed(guardrails={"budget": False}, account={"budgets_denied": True})
    assert not run.resources_of_type(BUDGET)
    assert not caplog.records  # no lookup


def test_denied_budgets_are_a_warning(changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture) -> None:
    run = changed(account={"budgets_denied": True})
    assert not run.resources_of_type(BUDGET)
    assert run.resources_of_type(ALARM)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "the stack has no AWS budget: lookup failed:" in warning
    assert "budgets:ViewBudget" in warning


def test_failed_lookup_of_budgets_is_no_denial(local: Deployment) -> None:
    class ThrottledAccount(StaticAccount):
        def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
            if token == "aws:budgets/getBudget:getBudget":
                raise RequestFailedError("api error ThrottlingException: Rate exceeded")
            return super().invoke(token, arguments)

    run = up(read_stack_file("local"), "local", ROOT, account=ThrottledAccount())
    assert run.resources_of_type(BUDGET)


def test_launch_does_not_depend_on_guardrails(shipped: Deployment) -> None:
    launch = shipped.resource("command:local:Command", "launch")
    required, pending = set[str](), [launch.urn]
    while pending:
        resource = shipped.resources.get(urn := pending.pop())
        if resource is not None and urn not in required:
            required.add(urn)
            pending += [*resource.dependencies, resource.parent]  # a child waits for what its component depends on
    types = {shipped.resources[urn].type for urn in required}
    assert types.isdisjoint({ALARM, BUDGET, TOPIC, "aws:sns/topicPolicy:TopicPolicy"})
    assert "aws:autoscaling/group:Group" in types


def test_email_address_is_subscribed(changed: Callable[..., Deployment], local: Deployment) -> None:
    assert not local.resources_of_type(SUBSCRIPTION)
    run = changed(guardrails={"email": "team@example.com"})
    subscription = run.resource(SUBSCRIPTION, "guardrails-email").inputs
    assert (subscription["protocol"], subscription["endpoint"]) == ("email", "team@example.com")


def test_idle_timeout_is_in_the_manifest(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"idle_timeout_minutes": 15})
    manifest = json.loads(run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["limits"]["idle_timeout_minutes"] == 15
