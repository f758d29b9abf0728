"""The cluster placement group of the workers, for low network latency."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments of Placement."""

    scope: Scope


class Placement(pulumi.ComponentResource):
    """A placement group for all workers. AWS places the instances of a Capacity Block itself."""

    group_name: pulumi.Output[str]
    group_arn: pulumi.Output[str]

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Placement", name, None, opts)
        group = aws.ec2.PlacementGroup(
            f"{name}-cluster",
            strategy=aws.ec2.PlacementStrategy.CLUSTER,
            tags=args.scope.tags("placement-group"),
            opts=child_options(self, "cluster"),
        )
        self.group_name, self.group_arn = group.name, group.arn
        self.register_outputs({"group_name": self.group_name})
