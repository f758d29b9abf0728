"""The network of a cluster: its VPC or an existing subnet, security groups, endpoints and flow logs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.components.endpoint_policies import endpoint_policies
from infra.components.endpoints import Endpoints, EndpointsArgs
from infra.components.flow_logs import FlowLogs, FlowLogsArgs
from infra.components.perimeter import Perimeter
from infra.components.security import Security, SecurityArgs
from infra.components.vpc import Vpc, VpcArgs, WorkerSubnet
from infra.scope import Scope
from trainyard.config.settings import StackSettings


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network. `subnet_id` is the head's subnet. Nodes need `dependencies` before they boot.

    `perimeter`: None in an existing VPC, whose routes to AWS are unknown.
    """

    subnet_id: pulumi.Input[str]
    worker_subnets: Sequence[WorkerSubnet]
    security: Security
    dependencies: Sequence[pulumi.Resource]
    perimeter: Perimeter | None = None


def create_network(
    scope: Scope,
    settings: StackSettings,
    worker_zones: Sequence[str],
    pin_zone: bool,
    key_arn: pulumi.Input[str],
    bucket_arns: Sequence[pulumi.Input[str]],
) -> Network:
    """Create the network, or use the existing subnet.

    `worker_zones`, `pin_zone`: see VpcArgs. `key_arn` encrypts the flow logs. `bucket_arns`: the stack's buckets.
    """
    network = settings.network
    if network.existing:
        security = _security(scope, settings, network.existing.vpc_id)
        existing = WorkerSubnet(id=network.existing.subnet_id, zone=scope.zone)
        return Network(subnet_id=existing.id, worker_subnets=[existing], security=security, dependencies=[security])
    vpc = Vpc(
        "network",
        VpcArgs(
            scope=scope,
            cidr=network.cidr,
            worker_zones=worker_zones,
            pin_zone=pin_zone,
            nat_gateway=network.nat_gateway,
        ),
    )
    security = _security(scope, settings, vpc.vpc_id)
    dependencies: list[pulumi.Resource] = [vpc, security, _endpoints(scope, settings, vpc, security, bucket_arns)]
    if network.flow_log_retention_days is not None:
        logs = FlowLogsArgs(
            scope=scope, vpc_id=vpc.vpc_id, retention_days=network.flow_log_retention_days, key_arn=key_arn
        )
        dependencies.append(FlowLogs("flow-logs", logs))
    return Network(
        subnet_id=vpc.private_subnet_id,
        worker_subnets=vpc.worker_subnets,
        security=security,
        dependencies=dependencies,
        perimeter=Perimeter(vpc_id=vpc.vpc_id, nat_addresses=vpc.nat_addresses),
    )


def _endpoints(
    scope: Scope, settings: StackSettings, vpc: Vpc, security: Security, bucket_arns: Sequence[pulumi.Input[str]]
) -> Endpoints:
    return Endpoints(
        "endpoints",
        EndpointsArgs(
            scope=scope,
            vpc_id=vpc.vpc_id,
            subnet_id=vpc.private_subnet_id,
            route_table_ids=[vpc.private_routes_id],
            security_group_ids=security.endpoint_groups,
            services=settings.endpoint_services,
            policies=endpoint_policies(scope, settings, bucket_arns),
        ),
        pulumi.ResourceOptions(depends_on=[security]),
    )


def _security(scope: Scope, settings: StackSettings, vpc_id: pulumi.Input[str]) -> Security:
    return Security(
        "security",
        SecurityArgs(
            scope=scope,
            vpc_id=vpc_id,
            efa=settings.efa,
            fsx=settings.fsx is not None,
            endpoints=settings.network.existing is None,
        ),
    )
