"""Schedule group of EventBridge Scheduler and the role of its schedules, which terminate the workers.

The launch creates the schedules (trainyard.aws.termination_schedule): a time in the program would make every update a
change.
"""

import pulumi
import pulumi_aws as aws

from infra.components.identity import service_role
from infra.components.statements import stack_groups, stack_reservations
from infra.scope import Scope


class TerminationSchedules(pulumi.ComponentResource):
    """Schedule group and role of the termination schedules. AWS deletes a group with its schedules."""

    schedule_group: pulumi.Output[str]
    role_arn: pulumi.Output[str]

    def __init__(self, name: str, scope: Scope, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:TerminationSchedules", name, None, opts)
        parent = pulumi.ResourceOptions(parent=self)
        statements = [
            stack_groups(scope, "Terminate", ["autoscaling:UpdateAutoScalingGroup"]),
            stack_reservations(scope, "CancelReservations", ["ec2:CancelCapacityReservation"]),
        ]
        role, policy = service_role(name, "termination schedules", scope, "scheduler", statements, parent)
        group = aws.scheduler.ScheduleGroup(
            name,
            tags=scope.tags("termination"),
            # A schedule that runs before the role has its policy would fail.
            opts=pulumi.ResourceOptions.merge(parent, pulumi.ResourceOptions(depends_on=[policy])),
        )
        self.schedule_group, self.role_arn = group.name, role.arn
        self.register_outputs({"schedule_group": self.schedule_group})
