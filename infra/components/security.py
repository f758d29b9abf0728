"""Security groups. They allow no inbound traffic from outside: operators use SSM Session Manager."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope
from trainyard.models.connection import AGENT_PORT

ALL_PROTOCOLS = "-1"
HTTPS_PORT = 443
# Lustre traffic of clients and file system. FSx for Lustre guide, "Access control with VPC".
LUSTRE_PORTS = ((988, 988), (1018, 1023))


@dataclass(frozen=True, kw_only=True)
class SecurityArgs:
    """Arguments of Security. `efa`, `fsx` and `endpoints` select the groups to create."""

    scope: Scope
    vpc_id: pulumi.Input[str]
    efa: bool
    fsx: bool
    endpoints: bool


class Security(pulumi.ComponentResource):
    """Security groups: `head_groups` for the head, `node_groups` for every interface of workers, `efa_groups` also for
    workers.
    """

    head_groups: list[pulumi.Output[str]]
    node_groups: list[pulumi.Output[str]]
    efa_groups: list[pulumi.Output[str]]
    fsx_groups: list[pulumi.Output[str]]
    endpoint_groups: list[pulumi.Output[str]]

    def __init__(self, name: str, args: SecurityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Security", name, None, opts)
        self._name_prefix, self._args = name, args

        nodes = self._group("nodes", "Workers: all traffic within the group, and to the internet")
        self._allow("nodes-from-nodes", aws.vpc.SecurityGroupIngressRule, nodes, nodes)
        head = self._group("head", "Head: connections of agents, and all traffic to the internet")
        self._allow("head-from-nodes", aws.vpc.SecurityGroupIngressRule, head, nodes, AGENT_PORT, AGENT_PORT)
        for role, group in (("nodes", nodes), ("head", head)):
            aws.vpc.SecurityGroupEgressRule(
                f"{name}-{role}-to-internet",
                security_group_id=group.id,
                ip_protocol=ALL_PROTOCOLS,
                cidr_ipv4="0.0.0.0/0",
                tags=args.scope.tags(f"{role}-to-internet"),
                opts=child_options(self, f"{role}-to-internet"),
            )
        self.node_groups, self.head_groups = [nodes.id], [head.id]
        self.efa_groups, self.fsx_groups, self.endpoint_groups = [], [], []

        if args.efa:
            # EFA traffic is not IP: it needs self-referencing rules for ingress and egress (EC2 user guide, EFA).
            efa = self._group("efa", "Elastic Fabric Adapter: all traffic within the group")
            self._allow("efa-from-efa", aws.vpc.SecurityGroupIngressRule, efa, efa)
            self._allow("efa-to-efa", aws.vpc.SecurityGroupEgressRule, efa, efa)
            self.efa_groups = [efa.id]

        if args.fsx:
            fsx = self._group("fsx", "FSx for Lustre: Lustre ports to nodes and within the group")
            for low, high in LUSTRE_PORTS:
                for peer_name, peer in (("nodes", nodes), ("fsx", fsx)):
                    self._allow(f"fsx-from-{peer_name}-{low}", aws.vpc.SecurityGroupIngressRule, fsx, peer, low, high)
                    self._allow(f"fsx-to-{peer_name}-{low}", aws.vpc.SecurityGroupEgressRule, fsx, peer, low, high)
                self._allow(f"nodes-from-fsx-{low}", aws.vpc.SecurityGroupIngressRule, nodes, fsx, low, high)
            self.fsx_groups = [fsx.id]

        if args.endpoints:
            endpoints = self._group("endpoints", "Interface endpoints: HTTPS from nodes")
            for role, group in (("nodes", nodes), ("head", head)):
                rule = aws.vpc.SecurityGroupIngressRule
                self._allow(f"endpoints-from-{role}", rule, endpoints, group, HTTPS_PORT, HTTPS_PORT)
            self.endpoint_groups = [endpoints.id]

        self.register_outputs({"node_groups": self.node_groups, "efa_groups": self.efa_groups})

    def _group(self, role: str, description: str) -> aws.ec2.SecurityGroup:
        return aws.ec2.SecurityGroup(
            f"{self._name_prefix}-{role}",
            vpc_id=self._args.vpc_id,
            description=description,
            tags=self._args.scope.tags(f"{role}-group"),
            opts=child_options(self, role),
        )

    def _allow(
        self,
        role: str,
        rule: type[aws.vpc.SecurityGroupIngressRule] | type[aws.vpc.SecurityGroupEgressRule],
        group: aws.ec2.SecurityGroup,
        peer: aws.ec2.SecurityGroup,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        """Allow a peer group: TCP on a range of ports, or all traffic without a range."""
        rule(
            f"{self._name_prefix}-{role}",
            security_group_id=group.id,
            referenced_security_group_id=peer.id,
            ip_protocol=ALL_PROTOCOLS if low is None else "tcp",
            from_port=low,
            to_port=high,
            tags=self._args.scope.tags(role),
            opts=child_options(self, role),
        )
