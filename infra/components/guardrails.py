"""Notifications to operators: an SNS topic, CloudWatch alarms and an AWS budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.components.statements import policy_document
from infra.scope import Scope
from trainyard.aws import tags

_PERIOD_SECONDS, _PERIODS = 60, 3
# Percent of the budget -> actual or forecasted cost of the month.
_NOTIFICATIONS = ((80.0, "ACTUAL"), (100.0, "ACTUAL"), (100.0, "FORECASTED"))


@dataclass(frozen=True, kw_only=True)
class GuardrailsArgs:
    """Arguments of Guardrails.

    `key_arn` encrypts the topic. `groups`: the head and the worker groups -> Auto Scaling group. `budget_usd` is per
    month; None: no budget.
    """

    scope: Scope
    key_arn: pulumi.Input[str]
    email: str | None
    budget_usd: float | None
    groups: Mapping[str, pulumi.Input[str]]


class Guardrails(pulumi.ComponentResource):
    """Topic, alarms and budget. They notify; lease, time limit and controller stop instances."""

    topic_arn: pulumi.Output[str]

    def __init__(self, name: str, args: GuardrailsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Guardrails", name, None, opts)
        self._name_prefix, self._args = name, args
        policy = self._topic()
        for group, autoscaling_group in args.groups.items():
            self._alarm(group, autoscaling_group, policy)
        if args.budget_usd is not None:
            self._budget(args.budget_usd, policy)
        self.register_outputs({"topic_arn": self.topic_arn})

    def _topic(self) -> pulumi.Resource:
        args, scope = self._args, self._args.scope
        topic = aws.sns.Topic(
            f"{self._name_prefix}-notifications",
            kms_master_key_id=args.key_arn,
            tags=scope.tags("notifications"),
            opts=child_options(self, "notifications"),
        )
        services = [f"{service}.{scope.dns_suffix}" for service in ("cloudwatch", "budgets")]
        publish = {
            "Sid": "Notifications",
            "Effect": "Allow",
            "Principal": {"Service": services},
            "Action": "sns:Publish",
            "Resource": topic.arn,
            "Condition": {"StringEquals": {"aws:SourceAccount": scope.account}},
        }
        policy = aws.sns.TopicPolicy(
            f"{self._name_prefix}-notifications",
            arn=topic.arn,
            policy=policy_document(publish),
            opts=child_options(self, "notifications"),
        )
        if args.email is not None:
            aws.sns.TopicSubscription(
                f"{self._name_prefix}-email",
                topic=topic.arn,
                protocol="email",
                endpoint=args.email,
                opts=child_options(self, "email"),
            )
        self.topic_arn = topic.arn
        return policy

    def _alarm(self, name: str, autoscaling_group: pulumi.Input[str], policy: pulumi.Resource) -> None:
        """Alarm on failed EC2 status checks in a group. EC2 user guide, "Status checks for Amazon EC2 instances".

        Its actions recover or reboot no instance: the group replaces an instance that fails its status checks, and EC2
        actions accept metrics of one instance only.
        https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-health-checks.html
        https://docs.aws.amazon.com/cdk/api/v2/docs/aws-cdk-lib.aws_cloudwatch_actions.Ec2InstanceAction.html
        """
        aws.cloudwatch.MetricAlarm(
            f"{self._name_prefix}-{name}-status",
            alarm_description=f"Trainyard stack {self._args.scope.stack}: EC2 status checks of {name} failed",
            namespace="AWS/EC2",
            metric_name="StatusCheckFailed",
            dimensions={"AutoScalingGroupName": autoscaling_group},
            statistic="Maximum",
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=1,
            period=_PERIOD_SECONDS,
            evaluation_periods=_PERIODS,
            treat_missing_data="notBreaching",  # a group without instances has no status checks
            alarm_actions=[self.topic_arn],
            ok_actions=[self.topic_arn],
            tags=self._args.scope.tags(f"{name}-alarm"),
            opts=child_options(self, f"{name}-status", depends_on=[policy]),
        )

    def _budget(self, usd: float, policy: pulumi.Resource) -> None:
        """Budget of the resources with the stack's tag, which must be an active cost allocation tag of the account."""
        aws.budgets.Budget(
            f"{self._name_prefix}-budget",
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=f"{usd:.2f}",
            limit_unit="USD",
            cost_filters=[
                aws.budgets.BudgetCostFilterArgs(
                    name="TagKeyValue", values=[f"user:{tags.STACK}${self._args.scope.stack_tag}"]
                )
            ],
            notifications=[self._notification(percent, kind) for percent, kind in _NOTIFICATIONS],
            tags=self._args.scope.tags("budget"),
            opts=child_options(self, "stack", depends_on=[policy]),
        )

    def _notification(self, percent: float, kind: str) -> aws.budgets.BudgetNotificationArgs:
        topics: Sequence[pulumi.Input[str]] = [self.topic_arn]
        return aws.budgets.BudgetNotificationArgs(
            comparison_operator="GREATER_THAN",
            threshold=percent,
            threshold_type="PERCENTAGE",
            notification_type=kind,
            subscriber_sns_topic_arns=topics,
        )
