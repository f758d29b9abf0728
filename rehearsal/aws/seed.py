"""Creation of the resources that exist in an account before a stack is deployed, under the ids of the request."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from types import ModuleType
from typing import Any

from moto.ec2.models import ec2_backends, subnets, vpcs
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.utils import random_id
from moto.kms import models as kms
from moto.s3.models import s3_backends

from rehearsal.aws.ec2.block_payments import Payment
from rehearsal.aws.ec2.interruptible import allocate
from rehearsal.aws.ec2.quotas import set_other_quotas_to_zero
from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.lookup import find_bucket
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.seed_models import AccountSeed, SeedNetwork, SeedReservation


def create_seed_resources(account_seed: AccountSeed) -> None:
    """Create the resources that do not exist yet. Raises ValueError for an invalid request, before creating any."""
    backend = ec2_backends[ACCOUNT][account_seed.region]
    for reservation in account_seed.reservations:
        _validate_reservation(backend, reservation)
    for bucket in account_seed.buckets:
        existing = find_bucket(bucket.name)
        if existing is not None and existing.account_id != ACCOUNT:
            raise ValueError(f"the bucket {bucket.name} belongs to another account")
    if account_seed.increased_quota_codes is not None:
        set_other_quotas_to_zero(account_seed.increased_quota_codes)
    for reservation in account_seed.reservations:
        if reservation.id not in reservations(backend):
            _create_reservation(backend, reservation)
    for network in account_seed.networks:
        if network.id not in backend.vpcs:
            _create_network(backend, network)
    for key in account_seed.keys:
        kms_backend = kms.kms_backends[ACCOUNT][key.region or account_seed.region]
        if key.id not in kms_backend.keys:
            with _next_id(kms, "generate_key_id", key.id):
                kms_backend.create_key(_key_policy(), "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "seed", None)
    for bucket in account_seed.buckets:
        if find_bucket(bucket.name) is None:
            created: Any = s3_backends[ACCOUNT]["aws"].create_bucket(bucket.name, bucket.region or account_seed.region)
            created.versioning_status = "Enabled" if bucket.versioned else None
            created.policy = _log_policy(bucket.name) if bucket.receives_access_logs else None


def _key_policy() -> str:
    """Return a policy for the account by its IAM policies, and for Auto Scaling, which volumes under the key need."""
    role = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    condition = {"StringEquals": {"kms:CallerAccount": ACCOUNT}, "ArnLike": {"aws:PrincipalArn": role}}
    allow = {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}
    statements = [
        {**allow, "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}},
        {**allow, "Principal": {"AWS": "*"}, "Condition": condition},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _log_policy(bucket: str) -> bytes:
    """Return a policy for the delivery of server access logs of the account's buckets."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "logging.s3.amazonaws.com"},
        "Action": ["s3:PutObject"],
        "Resource": f"arn:aws:s3:::{bucket}/access-logs/*",
        "Condition": {"StringEquals": {"aws:SourceAccount": ACCOUNT}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}).encode()


def _validate_reservation(backend: Any, seed: SeedReservation) -> None:
    if seed.instance_type not in INSTANCE_TYPES:
        raise ValueError(f"reservation {seed.id}: AWS has no instance type {seed.instance_type}")
    if all(zone.name != seed.zone for zone in backend.describe_availability_zones()):
        raise ValueError(f"reservation {seed.id}: the region has no Availability Zone {seed.zone}")
    existing = reservations(backend).get(seed.id)
    if existing is not None and not existing.matches(seed.instance_type, seed.zone):
        raise ValueError(
            f"reservation {seed.id} already exists for {existing.instance_type} in {existing.availability_zone}"
        )


def _create_reservation(backend: Any, seed: SeedReservation) -> None:
    created = CapacityReservation(
        backend,
        random_id("cr", 17) if seed.interruptible else seed.id,
        instance_type=seed.instance_type,
        zone=seed.zone,
        count=seed.count,
        block=seed.block,
        ultraserver_type=seed.ultraserver_type,
        criteria=seed.criteria,
        start=seed.start,
        end=seed.end,
    )
    if seed.block and not seed.paid:
        created.payment = Payment()
    reservations(backend)[created.id] = created
    created.owner_id = seed.owner or created.owner_id
    if seed.interruptible:
        interruptible = allocate(created, seed.id, seed.count, "retain")
        interruptible.owner_id, interruptible.end = created.owner_id, created.end
        # The owner shares the interruptible reservation (EC2 user guide, "Interruptible Capacity Reservations"). That
        # consumers cannot describe its source is an assumption.
        if seed.owner:
            del reservations(backend)[created.id]


def _create_network(backend: Any, seed: SeedNetwork) -> None:
    """Create a VPC divided in 16 CIDR blocks: the first is the public subnet, the next ones the private subnets."""
    with _next_id(vpcs, "random_vpc_id", seed.id):
        vpc = backend.create_vpc(seed.cidr)
    for attribute in ("enable_dns_support", "enable_dns_hostnames"):
        backend.modify_vpc_attribute(vpc.id, attribute, True)
    cidr_blocks = IPv4Network(seed.cidr).subnets(prefixlen_diff=4)
    public = backend.create_subnet(vpc.id, str(next(cidr_blocks)), availability_zone=seed.subnets[0].zone)
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    public_routes = backend.create_route_table(vpc.id)
    backend.create_route(public_routes.id, "0.0.0.0/0", gateway_id=gateway.id)
    backend.associate_route_table(public_routes.id, subnet_id=public.id)
    address = backend.allocate_address("vpc")
    nat = backend.create_nat_gateway(public.id, address.allocation_id)
    private_routes = backend.create_route_table(vpc.id)
    backend.create_route(private_routes.id, "0.0.0.0/0", nat_gateway_id=nat.id)
    subnet_ids = []
    for subnet_seed, cidr_block in zip(seed.subnets, cidr_blocks, strict=False):
        with _next_id(subnets, "random_subnet_id", subnet_seed.id):
            subnet = backend.create_subnet(vpc.id, str(cidr_block), availability_zone=subnet_seed.zone)
        subnet.map_public_ip_on_launch = False
        backend.associate_route_table(private_routes.id, subnet_id=subnet.id)
        subnet_ids.append(subnet.id)
    _create_endpoints(backend, vpc.id, seed.services, private_routes.id, subnet_ids[:1])


def _create_endpoints(
    backend: Any, vpc: str, services: tuple[str, ...], route_table: str, subnet_ids: list[str]
) -> None:
    for service in services:
        name = f"com.amazonaws.{backend.region_name}.{service}"
        if service in ("s3", "dynamodb"):
            backend.create_vpc_endpoint(vpc, name, "Gateway", None, [route_table])
        else:
            backend.create_vpc_endpoint(
                vpc, name, "Interface", None, [], subnet_ids=subnet_ids, private_dns_enabled=True
            )


@contextmanager
def _next_id(module: ModuleType, generator: str, resource_id: str) -> Iterator[None]:
    """Replace a random id generator of moto, so that resources created meanwhile get `resource_id`.

    The server's lock keeps other calls out.
    """
    original = getattr(module, generator)
    setattr(module, generator, lambda *args, **kwargs: resource_id)
    try:
        yield
    finally:
        setattr(module, generator, original)
