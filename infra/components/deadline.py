"""What ends the cost of a run without its nodes: a group of EventBridge schedules, and the role that they assume.

The launch creates the schedules (trainyard.aws.deadline): a time in the program would make every update a change.
"""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.identity import service_role
from infra.components.statements import stack_groups, stack_reservations
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class DeadlineArgs:
    """Arguments of Deadline."""

    scope: Scope


class Deadline(pulumi.ComponentResource):
    """The schedule group, which AWS deletes with its schedules, and the role of its schedules."""

    schedule_group: pulumi.Output[str]
    role_arn: pulumi.Output[str]

    def __init__(self, name: str, args: DeadlineArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Deadline", name, None, opts)
        parent, scope = pulumi.ResourceOptions(parent=self), args.scope
        statements = [
            stack_groups(scope, "Terminate", ["autoscaling:UpdateAutoScalingGroup"]),
            stack_reservations(scope, "CancelReservations", ["ec2:CancelCapacityReservation"]),
        ]
        role, policy = service_role(name, "deadline", scope, "scheduler", statements, parent)
        group = aws.scheduler.ScheduleGroup(
            name,
            tags=scope.tags("deadline"),
            # A schedule that runs before the role has its policy would fail.
            opts=pulumi.ResourceOptions.merge(parent, pulumi.ResourceOptions(depends_on=[policy])),
        )
        self.schedule_group, self.role_arn = group.name, role.arn
        self.register_outputs({"schedule_group": self.schedule_group})
