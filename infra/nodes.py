"""The nodes of a stack: their roles, the placement group, the head, the worker groups, and the guardrails."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.components.boundary import Boundary, BoundaryArgs
from infra.components.guardrails import Guardrails, GuardrailsArgs
from infra.components.head import Head, HeadArgs
from infra.components.identity import Identity, IdentityArgs
from infra.components.manifest import manifest_uri
from infra.components.network import Network
from infra.components.placement import Placement, PlacementArgs
from infra.components.staging_policy import StagingPolicy, StagingPolicyArgs
from infra.components.termination import TerminationSchedules
from infra.components.workers import WorkerGroup, WorkerGroupArgs
from infra.inputs import Inputs
from infra.packaging.files import ROOT
from infra.packaging.user_data import Role, user_data
from infra.storage import Storage
from trainyard.config.settings.capacity import GroupPlan


@dataclass(frozen=True, kw_only=True)
class PlacementGroup:
    """Name and ARN of the workers' cluster placement group, both None without one.

    `component`: the stack's Pulumi component; None if the group is that of a reservation.
    """

    name: pulumi.Input[str] | None
    arn: pulumi.Input[str] | None
    component: Placement | None = None


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Head, worker groups, their placement group, and their termination schedules."""

    head: Head
    termination: TerminationSchedules
    groups: Sequence[WorkerGroup]
    placement_group: PlacementGroup


def create_boundary(inputs: Inputs, storage: Storage) -> Boundary | None:
    """Create the permissions boundary of all roles; None if the settings name another."""
    settings = inputs.settings
    if settings.identity.permissions_boundary:
        return None
    return Boundary(
        "boundary",
        BoundaryArgs(
            scope=inputs.scope,
            bucket_arns=[storage.data.arn, storage.staging.arn],
            key_arns=[storage.key.arn, *sorted(set(settings.job.kms_keys))],
            sources=settings.other_bucket_prefixes,
            secrets=list(settings.job.secrets.values()),
            image=settings.ecr_image,
        ),
    )


def create_identity(inputs: Inputs, storage: Storage, network: Network) -> Identity:
    """Create the roles of head and workers."""
    settings = inputs.settings
    return Identity(
        "identity",
        IdentityArgs(
            scope=inputs.scope,
            data_bucket_arn=storage.data.arn,
            staging_bucket_arn=storage.staging.arn,
            key_arn=storage.key.arn,
            secrets=list(settings.job.secrets.values()),
            wheels=settings.node.s3_wheels,
            sources=list(settings.job.s3_sources.values()),
            source_keys=settings.job.kms_keys,
            image=settings.ecr_image,
            lock_results_days=settings.storage.lock_results_days,
            perimeter=network.perimeter,
        ),
    )


def protect_staging(storage: Storage, identity: Identity) -> StagingPolicy:
    """Create the policy of the staging bucket."""
    return StagingPolicy(
        "staging",
        StagingPolicyArgs(
            bucket=storage.staging,
            head_role_arn=identity.head_role_arn,
            worker_role_arn=identity.worker_role_arn,
            job_role_arn=identity.job_role_arn,
        ),
    )


def create_nodes(inputs: Inputs, storage: Storage, network: Network, identity: Identity) -> Nodes:
    """Create the head, and the worker groups without nodes."""
    placement_group = _select_placement_group(inputs)
    head = _create_head(inputs, storage, network, identity)
    groups = [
        _create_group(plan, inputs, storage, network, identity, placement_group) for plan in inputs.settings.groups
    ]
    termination = TerminationSchedules("termination", inputs.scope)
    return Nodes(head=head, termination=termination, groups=groups, placement_group=placement_group)


def _select_placement_group(inputs: Inputs) -> PlacementGroup:
    """Create the stack's placement group, or return that of the reservation.

    Nodes in a reservation use its placement group or none: in another group, some of them may not fit.
    """
    settings, reservation = inputs.settings, inputs.facts.reservation or inputs.facts.held
    if reservation:
        return PlacementGroup(name=reservation.placement_group, arn=reservation.placement_group_arn)
    if not any(map(settings.in_placement_group, settings.groups)):
        return PlacementGroup(name=None, arn=None)
    placement = Placement("placement", PlacementArgs(scope=inputs.scope))
    return PlacementGroup(name=placement.group_name, arn=placement.group_arn, component=placement)


def _create_head(inputs: Inputs, storage: Storage, network: Network, identity: Identity) -> Head:
    return Head(
        "head",
        HeadArgs(
            scope=inputs.scope,
            instance_type=inputs.settings.head_instance_type,
            image=inputs.head_image,
            root_volume_gib=inputs.settings.root_volume_gib,
            subnet_id=network.subnet_id,
            security_group_ids=network.security.head_groups,
            instance_profile=identity.head_profile,
            key_arn=storage.key.arn,
            user_data=_user_data(inputs, storage, "head"),
        ),
        _after_network(network),
    )


def _create_group(
    plan: GroupPlan,
    inputs: Inputs,
    storage: Storage,
    network: Network,
    identity: Identity,
    placement_group: PlacementGroup,
) -> WorkerGroup:
    settings = inputs.settings
    is_placed = plan.reservation or settings.in_placement_group(plan)
    return WorkerGroup(
        plan.name,
        WorkerGroupArgs(
            scope=inputs.scope,
            instance_types=settings.types_of(plan),
            plan=plan,
            efa=settings.efa,
            image=inputs.worker_image,
            key_arn=storage.key.arn,
            root_volume_gib=settings.root_volume_gib,
            root_volume_throughput=settings.root_volume_throughput,
            subnet_id=network.worker_subnets[0].id,
            security_group_ids=network.security.node_groups + network.security.efa_groups,
            instance_profile=identity.worker_profile,
            placement_group=placement_group.name if is_placed else None,
            user_data=_user_data(inputs, storage, "worker", plan.name),
            # Reserved capacity has none for a replacement before the unhealthy node is terminated.
            launches_before_terminating=not (
                plan.reservation or plan.open_reservations or settings.reserves_capacity(plan)
            ),
        ),
        _after_network(network),
    )


def _user_data(inputs: Inputs, storage: Storage, role: Role, group: str | None = None) -> pulumi.Output[str]:
    scope = inputs.scope
    return storage.staging.name.apply(
        lambda bucket: user_data(role, group, manifest_uri(bucket), scope.region, scope.account, ROOT)
    )


def _after_network(network: Network) -> pulumi.ResourceOptions:
    """Nodes need network access at boot."""
    return pulumi.ResourceOptions(depends_on=network.dependencies)


def create_guardrails(inputs: Inputs, storage: Storage, nodes: Nodes) -> None:
    """Create alarms and budget. The launch does not wait for them."""
    Guardrails(
        "guardrails",
        GuardrailsArgs(
            scope=inputs.scope,
            key_arn=storage.key.service_arn,
            email=inputs.settings.guardrails.email,
            budget_usd=inputs.budget_usd,
            groups={"head": nodes.head.autoscaling_group}
            | {group.name: group.autoscaling_group for group in nodes.groups},
        ),
    )
