"""The account's true state for the rehearsal: its instances, and every resource that exists.

The resource list walks every moto backend in use. A resource type without an entry in the tables below appears under
moto's attribute name, so that none is missed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.ec2.utils import filter_iam_instance_profiles

from rehearsal.aws.autoscaling.service_roles import is_linked
from rehearsal.aws.control_models import CapacityRequestRecord, InstanceRecord, ReservationRecord, Resource
from rehearsal.aws.ec2.capacity_requests import recorded_requests
from rehearsal.aws.ec2.public_images import is_public
from rehearsal.aws.ec2.reservations import reservations
from rehearsal.aws.process import ACCOUNT
from trainyard.models.report import PurchaseOption

_RESOURCE_TYPES = {
    "ec2": {
        "carrier_gateways": "carrier-gateway",
        "dhcp_options_sets": "dhcp-options",
        "egress_only_internet_gateways": "egress-only-internet-gateway",
        "enis": "network-interface",
        "flow_logs": "flow-log",
        "internet_gateways": "internet-gateway",
        "key_pairs": "key-pair",
        "launch_templates": "launch-template",
        "managed_prefix_lists": "prefix-list",
        "network_acls": "network-acl",
        "placement_groups": "placement-group",
        "route_tables": "route-table",
        "snapshots": "snapshot",
        "volumes": "volume",
        "vpc_end_points": "vpc-endpoint",
        "vpcs": "vpc",
    },
    "iam": {"instance_profiles": "instance-profile", "users": "user", "groups": "group"},
    "s3": {"buckets": "bucket"},
    "autoscaling": {
        "autoscaling_groups": "group",
        "launch_configurations": "launch-configuration",
        "lifecycle_hooks": "lifecycle-hook",
        "policies": "policy",
    },
    "fsx": {"associations": "data-repository-association", "file_systems": "file-system", "backups": "backup"},
    "logs": {"groups": "log-group"},
    "sns": {"topics": "topic", "subscriptions": "subscription"},
    "cloudwatch": {"alarms": "alarm", "dashboards": "dashboard"},
}

NameFinder = Callable[[Any], Iterable[str]]


def _customer_keys(keys: Any) -> Iterator[tuple[str, Any]]:
    """Yield customer managed keys that are not pending deletion. AWS managed keys have an alias alias/aws/...

    A key pending deletion costs nothing and AWS deletes it without a further call.

    Source: https://docs.aws.amazon.com/kms/latest/developerguide/deleting-keys.html
    """
    for name, key in keys.items():
        if key.key_state != "PendingDeletion" and not any(alias.startswith("alias/aws/") for alias in key.aliases):
            yield name, key


# Attributes that are nested, are lists, or also hold resources of AWS. None: an index of resources listed elsewhere.
_NAME_FINDERS: dict[str, dict[str, tuple[str, NameFinder] | list[tuple[str, NameFinder]] | None]] = {
    "ec2": {
        "addresses": ("elastic-ip", lambda resources: (address.allocation_id for address in resources)),
        "amis": (
            "image",
            lambda resources: (
                image.id for image in resources.values() if not is_public(image.id, image.ec2_backend.region_name)
            ),
        ),
        "attachments": None,
        # A cancelled, expired, unsupported or unpaid reservation holds no capacity, though EC2 lists it for a while.
        "capacity_reservations": (
            "capacity-reservation",
            lambda resources: (
                key
                for key, reservation in resources.items()
                if reservation.state not in ("cancelled", "expired", "failed", "unsupported", "payment-failed")
            ),
        ),
        "groups": ("security-group", lambda resources: (key for groups in resources.values() for key in groups)),
        "iam_instance_profile_associations": None,
        "launch_template_name_to_ids": None,
        "nat_gateways": (
            "nat-gateway",
            lambda resources: (key for key, gateway in resources.items() if gateway.state != "deleted"),
        ),
        "reservations": (
            "instance",
            lambda resources: (
                instance.id
                for reservation in resources.values()
                for instance in reservation.instances
                if instance.state != "terminated"
            ),
        ),
        "subnet_associations": None,
        "subnets": ("subnet", lambda resources: (key for subnets in resources.values() for key in subnets)),
        "tags": None,
    },
    "iam": {
        # Keys of a role session (ASIA...) expire without a call, and no AWS operation lists them.
        "access_keys": ("access-key", lambda resources: (key for key in resources if not key.startswith("ASIA"))),
        "managed_policies": ("policy", lambda resources: (arn for arn in resources if ":iam::aws:" not in arn)),
        "aws_managed_policies": None,
        "roles": ("role", lambda resources: (role.name for role in resources.values() if not is_linked(role))),
    },
    "autoscaling": {
        "scheduled_actions": (
            "scheduled-action",
            lambda resources: (f"{a.auto_scaling_group_name}/{a.scheduled_action_name}" for a in resources.values()),
        ),
    },
    "ssm": {"_parameters": ("parameter", lambda resources: (key for key in resources if not key.startswith("/aws/")))},
    "kms": {
        "keys": [
            ("key", lambda resources: (name for name, _ in _customer_keys(resources))),
            ("alias", lambda resources: (alias for _, key in _customer_keys(resources) for alias in key.aliases)),
        ]
    },
    "scheduler": {
        "schedule_groups": [
            ("schedule-group", lambda groups: (name for name in groups if name != "default")),
            ("schedule", lambda groups: (f"{g.name}/{name}" for g in groups.values() for name in g.schedules)),
        ]
    },
    "budgets": {"budgets": ("budget", lambda resources: (name for budgets in resources.values() for name in budgets))},
    "cloudwatch": {"paged_metric_data": None},
    "sns": {"sms_attributes": None, "sms_messages": None, "sms_message_objects": None},
}


def instances() -> list[InstanceRecord]:
    """Return every instance of the account, terminated ones included."""
    backends: Any = ec2_backends
    return [
        _record(region, instance)
        for account, region, backend in backends.iter_backends()
        if account == ACCOUNT
        for instance in backend.all_instances()
    ]


def capacity_reservations() -> list[ReservationRecord]:
    """Return every On-Demand Capacity Reservation of the account, also those that have ended."""
    backends: Any = ec2_backends
    return [
        ReservationRecord(
            id=reservation.id,
            instance_type=reservation.instance_type,
            zone=reservation.availability_zone,
            instances=reservation.total_instance_count,
            tags={tag["key"]: tag["value"] for tag in reservation.get_tags()},
            unused_seconds=reservation.unused_seconds(),
        )
        for account, _, backend in backends.iter_backends()
        if account == ACCOUNT
        for reservation in reservations(backend).values()
        if not reservation.is_block
    ]


def capacity_requests() -> list[CapacityRequestRecord]:
    """Return the launches and reservations that were requested, granted or not, in order per region."""
    backends: Any = ec2_backends
    return [
        record
        for account, _, backend in backends.iter_backends()
        if account == ACCOUNT
        for record in recorded_requests(backend)
    ]


def find_instance(instance_id: str) -> Any:
    """Return moto's instance. Raises ValueError for an unknown instance."""
    backends: Any = ec2_backends
    for account, _, backend in backends.iter_backends():
        for instance in backend.all_instances() if account == ACCOUNT else []:
            if instance.id == instance_id:
                return instance
    raise ValueError(f"instance {instance_id} does not exist")


def _record(region: str, instance: Any) -> InstanceRecord:
    group = getattr(instance, "autoscaling_group", None)
    return InstanceRecord(
        id=instance.id,
        region=region,
        state=instance.state,
        private_ip=instance.private_ip,
        instance_type=instance.instance_type,
        subnet=instance.subnet_id,
        zone=instance.availability_zone,
        purchase_option=_purchase_option(instance),
        image=instance.image_id,
        image_source=_image_source(instance),
        user_data=str(instance.user_data or ""),
        role_name=role_name(instance),
        tags={tag["key"]: tag["value"] for tag in instance.get_tags()},
        launch_time=instance.launched_at,
        terminated_time=instance.terminated_at,
        autoscaling_group=group.name if group else None,
        interrupted_time=instance.interrupted_at,
        lifecycle_state="Terminated" if instance.is_terminating or instance.state == "terminated" else "InService",
    )


def _purchase_option(instance: Any) -> PurchaseOption:
    if instance.lifecycle == "spot":
        return "spot"
    reservation = reservations(instance.ec2_backend).get(instance.capacity_reservation_id)
    market: PurchaseOption | None = reservation.market_type if reservation else None
    return market or "on-demand"


def _image_source(instance: Any) -> str | None:
    image = instance.ec2_backend.amis.get(instance.image_id)
    return None if image is None else image.source_instance_id


def role_name(instance: Any) -> str | None:
    """Return the name of the role of an instance; None without an instance profile."""
    attached = instance.iam_instance_profile
    if not attached:
        return None
    backend = instance.ec2_backend
    profile = filter_iam_instance_profiles(backend.account_id, backend.partition, attached["Arn"], None)
    return str(profile.roles[0].name) if profile.roles else None


def list_resources() -> list[Resource]:
    """Return every resource of the account, in every region that was used."""
    resources = {
        (service, kind, name if service == "ec2" or region == "aws" else f"{region}/{name}")
        for service, region, backend in _backends()
        for kind, name in _resources(service, backend)
    }
    return [Resource(service=service, kind=kind, id=name) for service, kind, name in sorted(resources)]


def _backends() -> Iterator[tuple[str, str, Any]]:
    used: Any = BackendDict
    for backends in list(used._instances):
        for account, region, backend in backends.iter_backends():
            if account == ACCOUNT:
                yield backends.service_name, region, backend


def _resources(service: str, backend: Any) -> Iterator[tuple[str, str]]:
    kinds, finders = _RESOURCE_TYPES.get(service, {}), _NAME_FINDERS.get(service, {})
    for attribute, value in vars(backend).items():
        if attribute in finders:
            rule = finders[attribute] or []
            for kind, finder in rule if isinstance(rule, list) else [rule]:
                yield from ((kind, name) for name in finder(value))
        elif isinstance(value, dict) and not attribute.startswith("_"):
            yield from ((kinds.get(attribute, attribute), str(key)) for key in value)
