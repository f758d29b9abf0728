"""What tells people that a cluster goes wrong or costs more than it should: a topic, alarms, a budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.scope import Scope
from trainyard.aws import tags

_PERIOD_SECONDS, _PERIODS = 60, 3
# Share of the budget, percent -> of what is spent, or of what AWS expects for the month.
_NOTICES = ((80.0, "ACTUAL"), (100.0, "ACTUAL"), (100.0, "FORECASTED"))


@dataclass(frozen=True, kw_only=True)
class GuardrailsArgs:
    """`key_arn`: key of the topic. `groups`: names of the worker groups. `budget_usd`: USD a month."""

    scope: Scope
    key_arn: pulumi.Input[str]
    email: str | None
    budget_usd: float
    head: pulumi.Input[str]
    groups: Mapping[str, pulumi.Input[str]]


class Guardrails(pulumi.ComponentResource):
    """Nothing here stops an instance: lease, time limit and controller do. This is for people."""

    topic_arn: pulumi.Output[str]

    def __init__(self, name: str, args: GuardrailsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Guardrails", name, None, opts)
        self._args = args
        self._own = pulumi.ResourceOptions(parent=self)
        policy = self._topic()
        after = pulumi.ResourceOptions.merge(self._own, pulumi.ResourceOptions(depends_on=[policy]))
        self._alarm("head", {"InstanceId": args.head}, after)
        for group, physical in args.groups.items():
            self._alarm(group, {"AutoScalingGroupName": physical}, after)
        self._budget(after)
        self.register_outputs({"topic_arn": self.topic_arn})

    def _topic(self) -> pulumi.Resource:
        args, scope = self._args, self._args.scope
        topic = aws.sns.Topic("notices", kms_master_key_id=args.key_arn, tags=scope.tags("notices"), opts=self._own)
        services = [f"{service}.{scope.dns_suffix}" for service in ("cloudwatch", "budgets")]
        publish = {
            "Sid": "Notices",
            "Effect": "Allow",
            "Principal": {"Service": services},
            "Action": "sns:Publish",
            "Resource": topic.arn,
            "Condition": {"StringEquals": {"aws:SourceAccount": scope.account}},
        }
        policy = aws.sns.TopicPolicy(
            "notices",
            arn=topic.arn,
            policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": [publish]}),
            opts=self._own,
        )
        if args.email is not None:
            aws.sns.TopicSubscription("email", topic=topic.arn, protocol="email", endpoint=args.email, opts=self._own)
        self.topic_arn = topic.arn
        return policy

    def _alarm(self, name: str, dimensions: Mapping[str, pulumi.Input[str]], opts: pulumi.ResourceOptions) -> None:
        """EC2's own checks of machine and system. EC2 user guide, "Status checks for Amazon EC2 instances"."""
        aws.cloudwatch.MetricAlarm(
            f"{name}-status",
            alarm_description=f"Trainyard stack {self._args.scope.stack}: EC2's status checks of {name} fail",
            namespace="AWS/EC2",
            metric_name="StatusCheckFailed",
            dimensions=dimensions,
            statistic="Maximum",
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=1,
            period=_PERIOD_SECONDS,
            evaluation_periods=_PERIODS,
            treat_missing_data="notBreaching",  # a group at zero has no checks to fail
            alarm_actions=[self.topic_arn],
            ok_actions=[self.topic_arn],
            tags=self._args.scope.tags(f"{name}-alarm"),
            opts=opts,
        )

    def _budget(self, opts: pulumi.ResourceOptions) -> None:
        """Of what bears the stack's tag, which must be active as a cost allocation tag in the account's billing."""
        aws.budgets.Budget(
            "stack",
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=f"{self._args.budget_usd:.2f}",
            limit_unit="USD",
            cost_filters=[
                aws.budgets.BudgetCostFilterArgs(
                    name="TagKeyValue", values=[f"user:{tags.STACK}${self._args.scope.stack}"]
                )
            ],
            notifications=[self._notice(share, kind) for share, kind in _NOTICES],
            tags=self._args.scope.tags("budget"),
            opts=opts,
        )

    def _notice(self, share: float, kind: str) -> aws.budgets.BudgetNotificationArgs:
        topics: Sequence[pulumi.Input[str]] = [self.topic_arn]
        return aws.budgets.BudgetNotificationArgs(
            comparison_operator="GREATER_THAN",
            threshold=share,
            threshold_type="PERCENTAGE",
            notification_type=kind,
            subscriber_sns_topic_arns=topics,
        )
