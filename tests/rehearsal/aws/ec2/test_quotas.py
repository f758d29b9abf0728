"""vCPU quotas: the instances that count against them, and launches above them."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.ec2.reference import load_reference
from rehearsal.aws.faults import InterfaceQuota, Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import (
    block,
    in_block,
    launch,
    refused,
    reserve,
    targeting,
    terminate_all,
)

P, STANDARD, SPOT_STANDARD = "L-417A185B", "L-1216C47A", "L-34B43A08"


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Remove instances and reservations of other tests, which count against quotas."""
    terminate_all(aws, client)
    cancel_all(client)
    yield
    aws.clear_faults()
    terminate_all(aws, client)


def cancel_all(client: Client) -> None:
    active = [{"Name": "state", "Values": ["active"]}]
    for reservation in client("ec2").describe_capacity_reservations(Filters=active)["CapacityReservations"]:
        if reservation["ReservationType"] == "default":  # Capacity Blocks count against no quota
            client("ec2").cancel_capacity_reservation(CapacityReservationId=reservation["CapacityReservationId"])


def applied(client: Client, code: str) -> float:
    return float(client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"])


def test_quota_is_large_without_a_fault(client: Client, aws: EmulatedAws) -> None:
    assert applied(client, P) == 1_000_000
    aws.inject(Quota(code=P, vcpus=96))
    assert applied(client, P) == 96
    assert applied(client, STANDARD) == 1_000_000


def test_quotas_that_were_not_increased_are_zero(client: Client, network: Network, aws: EmulatedAws) -> None:
    every_quota = tuple(quota.code for quota in load_reference().quotas)
    aws.seed(AccountSeed(region="us-east-1", increased_quota_codes=(STANDARD,)))
    try:
        assert (applied(client, STANDARD), applied(client, P)) == (1_000_000, 0)
        assert refused(lambda: launch(client, network, InstanceType="p4d.24xlarge")) == "VcpuLimitExceeded"
        assert launch(client, network)
    finally:
        aws.seed(AccountSeed(region="us-east-1", increased_quota_codes=every_quota))


def test_unknown_quota_does_not_exist(client: Client) -> None:
    with pytest.raises(ClientError, match="NoSuchResourceException"):
        applied(client, "L-00000000")


def test_launch_above_the_quota_is_refused(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(Quota(code=STANDARD, vcpus=4))  # a t3.medium has 2 vCPUs
    (first, _) = launch(client, network, 2)
    assert refused(lambda: launch(client, network)) == "VcpuLimitExceeded"
    client("ec2").terminate_instances(InstanceIds=[first])
    assert launch(client, network)


def test_spot_has_a_separate_quota(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(Quota(code=SPOT_STANDARD, vcpus=2))
    spot: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}
    launch(client, network, **spot)
    assert refused(lambda: launch(client, network, **spot)) == "MaxSpotInstanceCountExceeded"
    assert launch(client, network)


def test_reservation_and_the_instances_count_once(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(Quota(code=STANDARD, vcpus=4))
    name = reserve(client, 2, InstanceMatchCriteria="targeted")
    assert refused(lambda: launch(client, network)) == "VcpuLimitExceeded"
    assert refused(lambda: reserve(client, 1)) == "InstanceLimitExceeded"
    assert len(launch(client, network, 2, **targeting(name))) == 2
    client("ec2").cancel_capacity_reservation(CapacityReservationId=name)


def test_capacity_block_counts_against_no_quota(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(Quota(code=P, vcpus=96))  # vCPUs of one p4d.24xlarge
    assert launch(client, network, 2, **in_block(block(aws)))
    assert launch(client, network, InstanceType="p4d.24xlarge")
    assert refused(lambda: launch(client, network, InstanceType="p4d.24xlarge")) == "VcpuLimitExceeded"


def test_fault_with_unknown_quota_code_is_refused(aws: EmulatedAws) -> None:
    with pytest.raises(ValueError, match="not an EC2 vCPU quota; use one of L-"):
        aws.inject({"kind": "quota", "code": "L-00000000", "vcpus": 1})


def interface_quota(client: Client) -> float:
    quota = {"ServiceCode": "vpc", "QuotaCode": "L-DF5E4CA3"}
    return float(client("service-quotas").get_service_quota(**quota)["Quota"]["Value"])


def count_interfaces(client: Client) -> int:
    pages = client("ec2").get_paginator("describe_network_interfaces").paginate()
    return sum(len(page["NetworkInterfaces"]) for page in pages)


def test_region_has_5000_network_interfaces_by_default(client: Client, aws: EmulatedAws) -> None:
    assert interface_quota(client) == 5000
    aws.inject(InterfaceQuota(interfaces=40))
    assert interface_quota(client) == 40
    default = {"ServiceCode": "vpc", "QuotaCode": "L-DF5E4CA3"}
    assert client("service-quotas").get_aws_default_service_quota(**default)["Quota"]["Value"] == 5000


def test_launch_above_the_interface_quota_is_refused(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(InterfaceQuota(interfaces=count_interfaces(client) + 3))
    before = aws.list_resources()
    assert refused(lambda: launch(client, network, 4)) == "NetworkInterfaceLimitExceeded"
    assert aws.list_resources() == before
    ids = launch(client, network, 3)
    client("ec2").terminate_instances(InstanceIds=[ids[0]])
    assert launch(client, network)


def test_each_interface_of_an_instance_counts(client: Client, network: Network, aws: EmulatedAws) -> None:
    layout = [
        {"NetworkCardIndex": 0, "DeviceIndex": device, "InterfaceType": kind, "SubnetId": network.subnet}
        for device, kind in enumerate(("interface", "efa-only"))
    ]
    efa = {"ImageId": network.image, "InstanceType": "p4d.24xlarge", "NetworkInterfaces": layout}
    aws.inject(InterfaceQuota(interfaces=count_interfaces(client) + 3))
    run = client("ec2").run_instances
    assert run(MinCount=1, MaxCount=1, **efa)["Instances"]
    assert refused(lambda: run(MinCount=1, MaxCount=1, **efa)) == "NetworkInterfaceLimitExceeded"


def test_network_interface_above_the_quota_is_refused(client: Client, network: Network, aws: EmulatedAws) -> None:
    aws.inject(InterfaceQuota(interfaces=count_interfaces(client)))
    create = client("ec2").create_network_interface
    assert refused(lambda: create(SubnetId=network.subnet)) == "NetworkInterfaceLimitExceeded"
