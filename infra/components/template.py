"""The launch template of nodes: what head and workers have in common."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.lookups.image import Image
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class TemplateArgs:
    """Arguments of create_template.

    `root_volume_throughput`: MiB/s; None: that of gp3. `tagged`: kinds of resources that the launch of a node creates
    besides instance, volume and network interface.
    """

    scope: Scope
    instance_type: str
    image: Image
    interfaces: Sequence[aws.ec2.LaunchTemplateNetworkInterfaceArgs]
    instance_profile: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    root_volume_gib: int
    root_volume_throughput: int | None = None
    tagged: Sequence[str] = field(default=())
    user_data: pulumi.Input[str]


def create_template(
    name: str, args: TemplateArgs, parent: pulumi.ComponentResource, **settings: Any
) -> aws.ec2.LaunchTemplate:
    """Create the launch template of the nodes with the role `name`. `settings`: more arguments of the resource."""
    tags = args.scope.tags(name)
    return aws.ec2.LaunchTemplate(
        f"{name}-{args.image.family}",
        image_id=args.image.id,
        instance_type=args.instance_type,
        iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(name=args.instance_profile),
        metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
        ),
        network_interfaces=args.interfaces,
        block_device_mappings=[
            aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                device_name=args.image.root_device,
                ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                    volume_type="gp3",
                    volume_size=args.root_volume_gib,
                    throughput=args.root_volume_throughput,
                    encrypted="true",
                    kms_key_id=args.key_arn,
                    delete_on_termination="true",
                ),
            )
        ],
        # The tags of an Auto Scaling group reach instances only; audits find volumes and interfaces by their tags too.
        tag_specifications=[
            aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=tags)
            for kind in ("instance", "volume", "network-interface", *args.tagged)
        ],
        user_data=pulumi.Output.from_input(args.user_data).apply(lambda text: base64.b64encode(text.encode()).decode()),
        update_default_version=True,
        tags=args.scope.tags(f"{name}-template"),
        opts=pulumi.ResourceOptions(parent=parent, ignore_changes=["imageId"] if args.image.ignore_changes else []),
        **settings,
    )


def group_tags(scope: Scope, name: str) -> list[aws.autoscaling.GroupTagArgs]:
    """Return the tags of an Auto Scaling group, which its instances get too."""
    return [
        aws.autoscaling.GroupTagArgs(key=key, value=value, propagate_at_launch=True)
        for key, value in sorted(scope.tags(name).items())
    ]
