"""Makes what stands in an account before a stack comes, under exactly the ids that are given."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from types import ModuleType
from typing import Any

from moto.ec2.models import ec2_backends, subnets, vpcs
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.kms import models as kms
from moto.s3.models import s3_backends

from rehearsal.aws.ec2.reservations import CapacityReservation, reservations
from rehearsal.aws.lookup import bucket_of
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.seed_models import Given, GivenNetwork, GivenReservation


def make(given: Given) -> None:
    """Make what is not there yet. Raises ValueError for what can't be, and then nothing was made."""
    backend = ec2_backends[ACCOUNT][given.region]
    for each in given.reservations:
        _check(backend, each)
    for bucket in given.buckets:
        held = bucket_of(bucket.name)
        if held is not None and held.account_id != ACCOUNT:
            raise ValueError(f"the bucket {bucket.name} is another account's")
    for each in given.reservations:
        reservations(backend).setdefault(each.id, _reservation(backend, each))
    for network in given.networks:
        if network.id not in backend.vpcs:
            _network(backend, network)
    for key in given.keys:
        held = kms.kms_backends[ACCOUNT][given.region]
        if key.id not in held.keys:
            with _named(kms, "generate_key_id", key.id):
                held.create_key(_key_policy(), "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "given", None)
    for bucket in given.buckets:
        if bucket_of(bucket.name) is None:
            made: Any = s3_backends[ACCOUNT]["aws"].create_bucket(bucket.name, given.region)
            made.versioning_status = "Enabled" if bucket.versioned else None


def _key_policy() -> str:
    """The account by its IAM policies, and Auto Scaling, as it must for volumes under the key."""
    role = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    condition = {"StringEquals": {"kms:CallerAccount": ACCOUNT}, "ArnLike": {"aws:PrincipalArn": role}}
    allow = {"Effect": "Allow", "Action": "kms:*", "Resource": "*"}
    statements = [
        {**allow, "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}},
        {**allow, "Principal": {"AWS": "*"}, "Condition": condition},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def _check(backend: Any, given: GivenReservation) -> None:
    if given.instance_type not in INSTANCE_TYPES:
        raise ValueError(f"no instance type {given.instance_type}")
    if all(zone.name != given.zone for zone in backend.describe_availability_zones()):
        raise ValueError(f"no zone {given.zone}")
    held = reservations(backend).get(given.id)
    if held is not None and not held.fits(given.instance_type, given.zone):
        raise ValueError(f"{given.id} is there already: of {held.instance_type}, in {held.availability_zone}")


def _reservation(backend: Any, given: GivenReservation) -> CapacityReservation:
    return CapacityReservation(
        backend,
        given.id,
        instance_type=given.instance_type,
        zone=given.zone,
        count=given.count,
        block=given.block,
        criteria=given.criteria,
        start=given.start,
        end=given.end,
    )


def _network(backend: Any, given: GivenNetwork) -> None:
    """The first of the VPC's sixteen parts is the public subnet, the others are the private ones."""
    with _named(vpcs, "random_vpc_id", given.id):
        vpc = backend.create_vpc(given.cidr)
    for attribute in ("enable_dns_support", "enable_dns_hostnames"):
        backend.modify_vpc_attribute(vpc.id, attribute, True)
    parts = IPv4Network(given.cidr).subnets(prefixlen_diff=4)
    public = backend.create_subnet(vpc.id, str(next(parts)), availability_zone=given.subnets[0].zone)
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    out = backend.create_route_table(vpc.id)
    backend.create_route(out.id, "0.0.0.0/0", gateway_id=gateway.id)
    backend.associate_route_table(out.id, subnet_id=public.id)
    address = backend.allocate_address("vpc")
    nat = backend.create_nat_gateway(public.id, address.allocation_id)
    inner = backend.create_route_table(vpc.id)
    backend.create_route(inner.id, "0.0.0.0/0", nat_gateway_id=nat.id)
    ids = []
    for each, part in zip(given.subnets, parts, strict=False):
        with _named(subnets, "random_subnet_id", each.id):
            made = backend.create_subnet(vpc.id, str(part), availability_zone=each.zone)
        made.map_public_ip_on_launch = False
        backend.associate_route_table(inner.id, subnet_id=made.id)
        ids.append(made.id)
    _endpoints(backend, vpc.id, given.services, inner.id, ids[:1])


def _endpoints(backend: Any, vpc: str, services: tuple[str, ...], table: str, subnet_ids: list[str]) -> None:
    for service in services:
        name = f"com.amazonaws.{backend.region_name}.{service}"
        if service in ("s3", "dynamodb"):
            backend.create_vpc_endpoint(vpc, name, "Gateway", None, [table])
        else:
            backend.create_vpc_endpoint(
                vpc, name, "Interface", None, [], subnet_ids=subnet_ids, private_dns_enabled=True
            )


@contextmanager
def _named(module: ModuleType, generator: str, name: str) -> Iterator[None]:
    """What moto makes meanwhile has this id in place of a random one: the server's turn is ours."""
    kept = getattr(module, generator)
    setattr(module, generator, lambda *args, **given: name)
    try:
        yield
    finally:
        setattr(module, generator, kept)
