"""Topic, alarms and budget."""

import json
from collections.abc import Callable

from rehearsal.adapter.graph import Deployment

ALARM, BUDGET, TOPIC = "aws:cloudwatch/metricAlarm:MetricAlarm", "aws:budgets/budget:Budget", "aws:sns/topic:Topic"
SUBSCRIPTION = "aws:sns/topicSubscription:TopicSubscription"


def test_head_and_every_group_have_an_alarm_on_their_status_checks(shipped: Deployment) -> None:
    watched = {json.dumps(one.inputs["dimensions"]) for one in shipped.of_type(ALARM)}
    groups = {json.dumps({"AutoScalingGroupName": name}) for name in shipped.exports["groups"]}
    assert watched == groups | {json.dumps({"InstanceId": shipped.exports["head"]})}
    for alarm in shipped.of_type(ALARM):
        assert alarm.inputs["metricName"] == "StatusCheckFailed"
        assert alarm.inputs["treatMissingData"] == "notBreaching"
        assert alarm.inputs["alarmActions"] == [shipped.one(TOPIC, "notices").outputs["arn"]]


def test_topic_takes_messages_of_this_account_alone_and_is_encrypted(shipped: Deployment) -> None:
    topic = shipped.one(TOPIC, "notices")
    assert topic.inputs["kmsMasterKeyId"] == shipped.one("aws:kms/key:Key", "stack-key").outputs["arn"]
    (statement,) = json.loads(shipped.one("aws:sns/topicPolicy:TopicPolicy", "notices").inputs["policy"])["Statement"]
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    assert statement["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_key_lets_those_services_use_it(shipped: Deployment) -> None:
    policy = json.loads(shipped.one("aws:kms/key:Key", "stack-key").inputs["policy"])
    (notices,) = [one for one in policy["Statement"] if one["Sid"] == "Notices"]
    assert notices["Principal"] == {"Service": ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"]}


def test_budget_is_of_the_stack_and_of_what_a_run_can_cost(shipped: Deployment) -> None:
    budget = shipped.one(BUDGET, "stack").inputs
    assert float(budget["limitAmount"]) == shipped.exports["cost"]["capped_usd"]
    assert budget["costFilters"] == [{"name": "TagKeyValue", "values": [f"user:trainyard:stack${shipped.stack}"]}]
    assert {(one["threshold"], one["notificationType"]) for one in budget["notifications"]} == {
        (80, "ACTUAL"),
        (100, "ACTUAL"),
        (100, "FORECASTED"),
    }


def test_budget_can_be_given(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"budget_usd": 2500})
    assert run.one(BUDGET, "stack").inputs["limitAmount"] == "2500.00"


def test_address_is_subscribed_where_there_is_one(changed: Callable[..., Deployment], local: Deployment) -> None:
    assert not local.of_type(SUBSCRIPTION)
    run = changed(guardrails={"email": "team@example.com"})
    subscription = run.one(SUBSCRIPTION, "email").inputs
    assert (subscription["protocol"], subscription["endpoint"]) == ("email", "team@example.com")


def test_idle_limit_reaches_the_controller(changed: Callable[..., Deployment]) -> None:
    run = changed(guardrails={"idle_minutes": 15})
    manifest = json.loads(run.one("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])
    assert manifest["limits"]["idle_minutes"] == 15
