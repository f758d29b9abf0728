"""The head: a small on-demand instance with the controller, in an Auto Scaling group of one."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.template import TemplateArgs, create_template, group_tags
from infra.lookups.image import Image
from infra.scope import Scope

# Status checks of a new instance may fail while it boots: they do not count before this time. An instance that has
# stopped is replaced at once.
# https://docs.aws.amazon.com/autoscaling/ec2/userguide/health-check-grace-period.html
HEALTH_CHECK_GRACE_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class HeadArgs:
    """Arguments of Head."""

    scope: Scope
    instance_type: str
    image: Image
    root_volume_gib: int
    subnet_id: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    instance_profile: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    user_data: pulumi.Input[str]


class Head(pulumi.ComponentResource):
    """A group whose instance AWS replaces when it ends or fails the status checks of EC2. Its state is in S3.

    A new version of the launch template replaces the instance by an instance refresh, because cloud-init writes its
    files at the first boot only. The provider starts the refresh and does not wait for it:
    trainyard.operations.head finds an instance of the current version only. A refresh costs nothing beyond the minutes
    in which the earlier instance shuts down.
    https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-refresh.html

    The instance has no fixed address. A launch template may name an existing network interface, but that would tie the
    head to one Availability Zone, and no instance could start before its predecessor has released the interface.
    https://docs.aws.amazon.com/autoscaling/ec2/userguide/examples-launch-templates-aws-cli.html
    """

    autoscaling_group: pulumi.Output[str]

    def __init__(self, name: str, args: HeadArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Head", name, None, opts)
        template = create_template(
            name,
            TemplateArgs(
                scope=args.scope,
                instance_type=args.instance_type,
                image=args.image,
                interfaces=[
                    aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                        device_index=0,
                        associate_public_ip_address="false",
                        security_groups=args.security_group_ids,
                        delete_on_termination="true",
                    )
                ],
                instance_profile=args.instance_profile,
                key_arn=args.key_arn,
                root_volume_gib=args.root_volume_gib,
                user_data=args.user_data,
            ),
            self,
        )
        group = aws.autoscaling.Group(
            name,
            min_size=1,
            max_size=1,
            launch_template=aws.autoscaling.GroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(str)
            ),
            vpc_zone_identifiers=[args.subnet_id],
            health_check_type="EC2",
            health_check_grace_period=HEALTH_CHECK_GRACE_SECONDS,
            instance_refresh=aws.autoscaling.GroupInstanceRefreshArgs(
                strategy="Rolling",
                preferences=aws.autoscaling.GroupInstanceRefreshPreferencesArgs(
                    min_healthy_percentage=0, instance_warmup="0"
                ),
            ),
            tags=group_tags(args.scope, name),
            # Its instance would keep the old subnet from being deleted when the head moves to another zone.
            opts=pulumi.ResourceOptions(
                parent=self, replace_on_changes=["vpcZoneIdentifiers"], delete_before_replace=True
            ),
        )
        self.autoscaling_group = group.name
        self.register_outputs({"autoscaling_group": self.autoscaling_group})
