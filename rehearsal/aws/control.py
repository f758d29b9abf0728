"""What is true: about the instances, and about all that exists, for the rehearsal itself.

A dump walks every backend that has been used, whatever it is: a kind of thing that nobody thought of appears under
moto's own name for it instead of being missed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.ec2.utils import filter_iam_instance_profiles

from rehearsal.aws.autoscaling.service_roles import is_linked
from rehearsal.aws.control_models import InstanceTruth, Resource
from rehearsal.aws.ec2 import terminations as endings
from rehearsal.aws.ec2.images import is_public
from rehearsal.aws.process import ACCOUNT

_KINDS = {
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

Finder = Callable[[Any], Iterable[str]]


def _keys(found: Any) -> Iterator[tuple[str, Any]]:
    """AWS's own have an alias of the form alias/aws/...; what is to be deleted costs nothing and goes by itself.

    Source: https://docs.aws.amazon.com/kms/latest/developerguide/deleting-keys.html
    """
    for name, key in found.items():
        if key.key_state != "PendingDeletion" and not any(alias.startswith("alias/aws/") for alias in key.aliases):
            yield name, key


# What is nested, a list, or holds more than the account's own things. None: an index of things that are told elsewhere.
_FINDERS: dict[str, dict[str, tuple[str, Finder] | list[tuple[str, Finder]] | None]] = {
    "ec2": {
        "addresses": ("elastic-ip", lambda found: (address.allocation_id for address in found)),
        "amis": (
            "image",
            lambda found: (
                image.id for image in found.values() if not is_public(image.id, image.ec2_backend.region_name)
            ),
        ),
        "attachments": None,
        # Of one that is over nothing is held any more, though EC2 tells of it for a while.
        "capacity_reservations": (
            "capacity-reservation",
            lambda found: (key for key, held in found.items() if held.state not in ("cancelled", "expired")),
        ),
        "groups": ("security-group", lambda found: (key for groups in found.values() for key in groups)),
        "iam_instance_profile_associations": None,
        "launch_template_name_to_ids": None,
        "nat_gateways": (
            "nat-gateway",
            lambda found: (key for key, gateway in found.items() if gateway.state != "deleted"),
        ),
        "reservations": (
            "instance",
            lambda found: (
                instance.id
                for reservation in found.values()
                for instance in reservation.instances
                if instance.state != "terminated"
            ),
        ),
        "subnet_associations": None,
        "subnets": ("subnet", lambda found: (key for subnets in found.values() for key in subnets)),
        "tags": None,
    },
    "iam": {
        # Those of a role's session (ASIA...) end by themselves, and AWS lists them nowhere.
        "access_keys": ("access-key", lambda found: (key for key in found if not key.startswith("ASIA"))),
        "managed_policies": ("policy", lambda found: (arn for arn in found if ":iam::aws:" not in arn)),
        "aws_managed_policies": None,
        "roles": ("role", lambda found: (role.name for role in found.values() if not is_linked(role))),
    },
    "autoscaling": {
        "scheduled_actions": (
            "scheduled-action",
            lambda found: (f"{a.auto_scaling_group_name}/{a.scheduled_action_name}" for a in found.values()),
        ),
    },
    "ssm": {"_parameters": ("parameter", lambda found: (key for key in found if not key.startswith("/aws/")))},
    "kms": {
        "keys": [
            ("key", lambda found: (name for name, _ in _keys(found))),
            ("alias", lambda found: (alias for _, key in _keys(found) for alias in key.aliases)),
        ]
    },
    "budgets": {"budgets": ("budget", lambda found: (name for budgets in found.values() for name in budgets))},
    "cloudwatch": {"paged_metric_data": None},
    "sns": {"sms_attributes": None, "sms_messages": None, "sms_message_objects": None},
}


def instances() -> list[InstanceTruth]:
    """Every instance that ever was."""
    backends: Any = ec2_backends
    return [
        _truth(region, instance)
        for account, region, backend in backends.iter_backends()
        if account == ACCOUNT
        for instance in backend.all_instances()
    ]


def switch_off(name: str) -> None:
    """An instance has switched itself off. Raises ValueError where there is none of that id."""
    backends: Any = ec2_backends
    for account, _, backend in backends.iter_backends():
        for instance in backend.all_instances() if account == ACCOUNT else []:
            if instance.id == name:
                return endings.switch_off(instance)
    raise ValueError(f"no instance {name}")


def _truth(region: str, instance: Any) -> InstanceTruth:
    group = getattr(instance, "autoscaling_group", None)
    return InstanceTruth(
        id=instance.id,
        region=region,
        state=instance.state,
        private_ip=instance.private_ip,
        instance_type=instance.instance_type,
        subnet=instance.subnet_id,
        zone=instance.availability_zone,
        image=instance.image_id,
        image_source=_image_source(instance),
        user_data=str(instance.user_data or ""),
        role_name=_role_name(instance),
        tags={tag["key"]: tag["value"] for tag in instance.get_tags()},
        launch_time=instance.launched_at,
        terminated_time=instance.terminated_at,
        autoscaling_group=group.name if group else None,
        interrupted_time=instance.interrupted_at,
        lifecycle_state="Terminated" if instance.is_ending or instance.state == "terminated" else "InService",
    )


def _image_source(instance: Any) -> str | None:
    image = instance.ec2_backend.amis.get(instance.image_id)
    return None if image is None else image.source_instance_id


def _role_name(instance: Any) -> str | None:
    attached = instance.iam_instance_profile
    if not attached:
        return None
    backend = instance.ec2_backend
    profile = filter_iam_instance_profiles(backend.account_id, backend.partition, attached["Arn"], None)
    return str(profile.roles[0].name) if profile.roles else None


def dump() -> list[Resource]:
    """All that exists in the account, in every region that was used."""
    found = {
        (service, kind, name if service == "ec2" or region == "aws" else f"{region}/{name}")
        for service, region, backend in _backends()
        for kind, name in _things(service, backend)
    }
    return [Resource(service=service, kind=kind, id=name) for service, kind, name in sorted(found)]


def _backends() -> Iterator[tuple[str, str, Any]]:
    used: Any = BackendDict
    for backends in list(used._instances):
        for account, region, backend in backends.iter_backends():
            if account == ACCOUNT:
                yield backends.service_name, region, backend


def _things(service: str, backend: Any) -> Iterator[tuple[str, str]]:
    kinds, finders = _KINDS.get(service, {}), _FINDERS.get(service, {})
    for attribute, value in vars(backend).items():
        if attribute in finders:
            rule = finders[attribute] or []
            for kind, finder in rule if isinstance(rule, list) else [rule]:
                yield from ((kind, name) for name in finder(value))
        elif isinstance(value, dict) and not attribute.startswith("_"):
            yield from ((kinds.get(attribute, attribute), str(key)) for key in value)
