"""Where a cluster's nodes are: a VPC of its own or one that is there, with security groups, endpoints and flow logs."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.components.endpoints import Endpoints, EndpointsArgs
from infra.components.flow_logs import FlowLogs, FlowLogsArgs
from infra.components.security import Security, SecurityArgs
from infra.components.vpc import Vpc, VpcArgs
from infra.scope import Scope
from trainyard.config.settings import StackSettings


@dataclass(frozen=True, kw_only=True)
class Network:
    """`parts`: the components that nodes need before they boot."""

    subnet_id: pulumi.Input[str]
    security: Security
    parts: Sequence[pulumi.Resource]


def lay_network(scope: Scope, settings: StackSettings, pin_zone: bool, key_arn: pulumi.Input[str]) -> Network:
    """Build what the settings don't say is there. `pin_zone`: see VpcArgs. `key_arn`: key of the flow logs."""
    asked = settings.network
    if asked.existing:
        security = _security(scope, settings, asked.existing.vpc_id)
        return Network(subnet_id=asked.existing.subnet_id, security=security, parts=[security])
    vpc = Vpc("network", VpcArgs(scope=scope, cidr=asked.cidr, pin_zone=pin_zone, nat=asked.nat))
    security = _security(scope, settings, vpc.vpc_id)
    endpoints = Endpoints(
        "endpoints",
        EndpointsArgs(
            scope=scope,
            vpc_id=vpc.vpc_id,
            subnet_id=vpc.private_subnet_id,
            route_table_ids=[vpc.private_routes_id],
            security_group_ids=security.endpoint_groups,
            services=settings.endpoint_services,
        ),
        pulumi.ResourceOptions(depends_on=[security]),
    )
    parts: list[pulumi.Resource] = [vpc, security, endpoints]
    if asked.flow_logs_days is not None:
        logs = FlowLogsArgs(scope=scope, vpc_id=vpc.vpc_id, days=asked.flow_logs_days, key_arn=key_arn)
        parts.append(FlowLogs("flow-logs", logs))
    return Network(subnet_id=vpc.private_subnet_id, security=security, parts=parts)


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
