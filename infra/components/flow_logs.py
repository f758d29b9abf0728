"""Flow logs of the VPC in a CloudWatch log group, deleted with the cluster."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.identity import service_role
from infra.components.statements import allow
from infra.scope import Scope

_AGGREGATION_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class FlowLogsArgs:
    """Arguments of FlowLogs. `key_arn` encrypts the log group."""

    scope: Scope
    vpc_id: pulumi.Input[str]
    retention_days: int
    key_arn: pulumi.Input[str]


class FlowLogs(pulumi.ComponentResource):
    """Flow logs with their log group and role. VPC user guide, "Publish flow logs to CloudWatch Logs"."""

    def __init__(self, name: str, args: FlowLogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:FlowLogs", name, None, opts)
        parent = pulumi.ResourceOptions(parent=self)
        group = aws.cloudwatch.LogGroup(
            name,
            retention_in_days=args.retention_days,
            kms_key_id=args.key_arn,
            tags=args.scope.tags("flow-logs"),
            opts=parent,
        )
        write = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
        role, policy = service_role(
            name,
            "flow-logs",
            args.scope,
            "vpc-flow-logs",
            [allow("Write", write, [pulumi.Output.concat(group.arn, ":*")])],
            parent,
        )
        aws.ec2.FlowLog(
            name,
            vpc_id=args.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=_AGGREGATION_SECONDS,
            tags=args.scope.tags("flow-logs"),
            opts=pulumi.ResourceOptions.merge(parent, pulumi.ResourceOptions(depends_on=[policy])),
        )
        self.register_outputs({})
