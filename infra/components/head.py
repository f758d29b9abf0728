"""The head node: a small on-demand instance with the controller."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.lookups.image import Image
from infra.scope import Scope


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
    """The head instance. New user data replaces it, because cloud-init writes its files at the first boot only."""

    instance_id: pulumi.Output[str]
    address: pulumi.Output[str]

    def __init__(self, name: str, args: HeadArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Head", name, None, opts)
        tags = args.scope.tags("head")
        instance = aws.ec2.Instance(
            f"{name}-{args.image.family}",
            ami=args.image.id,
            instance_type=args.instance_type,
            subnet_id=args.subnet_id,
            vpc_security_group_ids=args.security_group_ids,
            associate_public_ip_address=False,
            iam_instance_profile=args.instance_profile,
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                volume_type="gp3",
                volume_size=args.root_volume_gib,
                encrypted=True,
                kms_key_id=args.key_arn,
                delete_on_termination=True,
                tags=tags,
            ),
            user_data=args.user_data,
            user_data_replace_on_change=True,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["ami"] if args.image.ignore_changes else []),
        )
        self.instance_id = instance.id
        self.address = instance.private_ip
        self.register_outputs({"instance_id": self.instance_id, "address": self.address})
