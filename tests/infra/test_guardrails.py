"""Topic, alarms and budget."""

import json
from collections.abc import Callable

from rehearsal.adapter.deployment import Deployment

ALARM, BUDGET, TOPIC = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:budgets/budget:Budget", "aws:sns/topic:Topic"
SUBSCRIPTION = "aws:sns/topicSubscription:TopicSubscription"


def test_head_and_every_group_have_an_alarm_on_their_status_checks(shipped: Deployment) -> None:
    monitored = {json.dumps(each.inputs["dimensions"]) for each in shipped.resources_of_type(ALARM)}
    groups = {json.dumps({"AutoScalingGroupName": name}) for name in shipped.exports["groups"]}
    assert monitored == groups | {json.dumps({"InstanceId": shipped.exports["head"]})}
    for alarm in shipped.resources_of_type(ALARM):
        assert alarm.inputs["metricName"] == "StatusCheckFailed"
        assert alarm.inputs["treatMissingData"] == "notBreaching"
        assert alarm.inputs["alarmActions"] == [shipped.resource(TOPIC, "notifications").outputs["arn"]]


def test_topic_is_encrypted_and_limited_to_this_account(shipped: Deployment) -> None:
    topic = shipped.resource(TOPIC, "notifications")
    assert topic.inputs["kmsMasterKeyId"] == shipped.resource("aws:kms/key:Key", "stack-key").outputs["arn"]
    (statement,) = json.loads(shipped.resource("aws:sns/topicPolicy:TopicPolicy", "notifications").inputs["policy"])[
        "Statement"
    ]
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    assert statement["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_key_allows_the_notification_services(shipped: Deployment) -> None:
    policy = json.loads(shipped.resource("aws:kms/key:Key", "stack-key").inputs["policy"])
    (statement,) = [each for each in policy["Statement"] if each["Sid"] == "Notifications"]
    assert statement["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_budget_covers_the_stack_and_the_maximum_cost(shipped: Deployment) -> None:
    budget = shipped.resource(BUDGET, "stack").inputs
    assert float(budget["limitAmount"]) == shipped.exports["cost"]["max_run_usd"]
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": [f"user:trainyard:stack${shipped.stack}"]}]
    assert {(each["threshold"], each["notificationType"]) for each in budget["notifications"]} == {
        (80, "ACTUAL"),
        (100, "ACTUAL"),
        (100, "FORECASTED"),
    }


def test_budget_is_configurable(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"budget_usd": 2500})
    assert run.resource(BUDGET, "stack").inputs["limitAmount"] == "2500.00"


def test_email_address_is_subscribed(changed: Callable[..., Deployment], local: Deployment) -> None:
    assert not local.resources_of_type(SUBSCRIPTION)
    run = changed(guardrails={"email": "team@example.com"})
    subscription = run.resource(SUBSCRIPTION, "email").inputs
    assert (subscription["protocol"], subscription["endpoint"]) == ("email", "team@example.com")


def test_idle_timeout_is_in_the_manifest(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"idle_timeout_minutes": 15})
    manifest = json.loads(run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["limits"]["idle_timeout_minutes"] == 15
