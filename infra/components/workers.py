"""A worker group: launch template, Auto Scaling group and lifecycle hook. The launch adds the nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.template import TemplateArgs, create_template, group_tags
from infra.lookups.image import Image
from infra.scope import Scope
from trainyard.config.catalog import InstanceType
from trainyard.config.settings.capacity import GroupPlan

# Large types boot for several minutes, and a driver may reboot the node. An instance that never responds is replaced
# only after this time, so that AWS advises against long values. The status checks are those of EC2.
HEALTH_CHECK_GRACE_SECONDS = 600
HEARTBEAT_SECONDS = 120  # as long as the notice of a Spot interruption
# The provider waits 10 minutes for the end of a group's instances; large types shut down for up to 20 minutes.
_TIMEOUTS = pulumi.CustomTimeouts(update="40m", delete="40m")

# While an unhealthy node runs, its replacement cannot run on the same host. Source: Auto Scaling user guide, "Instance
# maintenance policies".
_LAUNCH_FIRST = aws.autoscaling.GroupInstanceMaintenancePolicyArgs(
    min_healthy_percentage=100, max_healthy_percentage=200
)


def _maximum_replacements(nodes: int) -> int:
    """Return how many replacements a group launches before it terminates their nodes. A rack may fail as a whole."""
    return math.ceil(nodes / 8)


@dataclass(frozen=True, kw_only=True)
class WorkerGroupArgs:
    """Arguments of WorkerGroup.

    `instance_types`: the type of the launch template first, then other types of Spot Instances that support its network
    interfaces.
    `subnet_id` is the first that the launch tries. `root_volume_throughput` is in MiB/s. `launches_before_terminating`:
    the group keeps an unhealthy node until its replacement runs.
    """

    scope: Scope
    instance_types: Sequence[InstanceType]
    plan: GroupPlan
    efa: bool
    image: Image
    key_arn: pulumi.Input[str]
    root_volume_gib: int
    root_volume_throughput: int
    subnet_id: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    instance_profile: pulumi.Input[str]
    placement_group: pulumi.Input[str] | None
    user_data: pulumi.Input[str]
    launches_before_terminating: bool


class WorkerGroup(pulumi.ComponentResource):
    """An Auto Scaling group that is created empty. Launch, lease and controller set its desired capacity."""

    name: str
    plan: GroupPlan
    autoscaling_group: pulumi.Output[str]
    lifecycle_hook: pulumi.Output[str]
    max_size: int
    image_id: pulumi.Output[str | None]

    def __init__(self, name: str, args: WorkerGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:WorkerGroup", name, None, opts)
        self.name, self.plan = name, args.plan
        spot = args.plan.market == "spot"
        template = create_template(
            name,
            TemplateArgs(
                scope=args.scope,
                instance_type=args.instance_types[0].name,
                image=args.image,
                interfaces=[
                    aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                        network_card_index=interface.card,
                        device_index=interface.device,
                        interface_type=interface.type,
                        security_groups=args.security_group_ids,
                        delete_on_termination="true",
                    )
                    for interface in args.instance_types[0].interfaces(args.efa)
                ],
                instance_profile=args.instance_profile,
                key_arn=args.key_arn,
                root_volume_gib=args.root_volume_gib,
                root_volume_throughput=args.root_volume_throughput,
                tagged=("spot-instances-request",) if spot else (),
                user_data=args.user_data,
            ),
            self,
            placement=(
                aws.ec2.LaunchTemplatePlacementArgs(group_name=args.placement_group)
                if args.placement_group is not None
                else None
            ),
            instance_initiated_shutdown_behavior="terminate",  # a drained node powers itself off
            instance_market_options=_market(args.plan),
            capacity_reservation_specification=_reservation(args.plan),
        )
        # With the replacements that are launched before their nodes are terminated.
        replacements = _maximum_replacements(args.plan.nodes) if args.launches_before_terminating else 0
        self.max_size = args.plan.nodes + replacements
        group = aws.autoscaling.Group(
            name,
            min_size=0,
            max_size=self.max_size,
            launch_template=(
                None
                if spot
                else aws.autoscaling.GroupLaunchTemplateArgs(id=template.id, version=template.latest_version.apply(str))
            ),
            mixed_instances_policy=_spot_policy(args, template) if spot else None,
            vpc_zone_identifiers=[args.subnet_id],
            health_check_type="EC2",
            health_check_grace_period=HEALTH_CHECK_GRACE_SECONDS,
            instance_maintenance_policy=_LAUNCH_FIRST if args.launches_before_terminating else None,
            suspended_processes=["AZRebalance"],
            # A launch that rolls back must not terminate older nodes.
            termination_policies=["NewestInstance"],
            wait_for_capacity_timeout="0",
            tags=group_tags(args.scope, name),
            # The launch sets the desired capacity, and the subnet in whose zone it finds capacity.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["vpcZoneIdentifiers"], custom_timeouts=_TIMEOUTS),
        )
        # A terminating node saves a checkpoint and powers itself off. Without a heartbeat AWS continues.
        hook = aws.autoscaling.LifecycleHook(
            f"{name}-drain",
            autoscaling_group_name=group.name,
            lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
            heartbeat_timeout=HEARTBEAT_SECONDS,
            default_result="CONTINUE",
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.autoscaling_group = group.name
        self.image_id = template.image_id  # not args.image.id, whose changes may be ignored
        self.lifecycle_hook = hook.name
        self.register_outputs({"autoscaling_group": self.autoscaling_group})


def _spot_policy(
    args: WorkerGroupArgs, template: aws.ec2.LaunchTemplate
) -> aws.autoscaling.GroupMixedInstancesPolicyArgs:
    """Return a policy that is wholly Spot: LaunchInstances supports Spot Instances in no other way.

    Source: Auto Scaling user guide, "Launch instances synchronously".
    """
    price = args.plan.max_price_usd
    return aws.autoscaling.GroupMixedInstancesPolicyArgs(
        launch_template=aws.autoscaling.GroupMixedInstancesPolicyLaunchTemplateArgs(
            launch_template_specification=aws.autoscaling.GroupMixedInstancesPolicyLaunchTemplateLaunchTemplateSpecificationArgs(
                launch_template_id=template.id, version=template.latest_version.apply(str)
            ),
            overrides=[
                aws.autoscaling.GroupMixedInstancesPolicyLaunchTemplateOverrideArgs(instance_type=entry.name)
                for entry in args.instance_types
            ],
        ),
        instances_distribution=aws.autoscaling.GroupMixedInstancesPolicyInstancesDistributionArgs(
            on_demand_base_capacity=0,
            on_demand_percentage_above_base_capacity=0,
            spot_allocation_strategy="price-capacity-optimized",
            spot_max_price=None if price is None else f"{price:g}",
        ),
    )


def _market(plan: GroupPlan) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    """Return the market options. The group's policy requests Spot Instances: its template must not."""
    if plan.market in ("on-demand", "spot"):
        return None
    return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type=plan.market)


def _reservation(plan: GroupPlan) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """Return the reservation to launch into. Groups without one do not use open reservations."""
    if plan.reservation is not None:
        return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
            capacity_reservation_target=aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
                capacity_reservation_id=plan.reservation
            )
        )
    if plan.market != "on-demand":
        return None
    preference = "open" if plan.open_reservations else "none"
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(capacity_reservation_preference=preference)
