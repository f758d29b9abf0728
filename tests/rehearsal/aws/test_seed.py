"""Resources that a stack expects in the account exist under their ids before it is deployed."""

import boto3
import pytest

from rehearsal.audit import leaked_resources
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedBucket, SeedKey, SeedNetwork, SeedReservation, SeedSubnet

REGION = "us-east-1"
KEY = "12345678-1234-1234-1234-123456789012"
SUBNETS = ("subnet-0aaaaaaaaaaaaaaa1", "subnet-0aaaaaaaaaaaaaaa2")
SEED = AccountSeed(
    region=REGION,
    reservations=(
        SeedReservation(id="cr-0aaaaaaaaaaaaaaa1", instance_type="p4d.24xlarge", zone="us-east-1b", count=3),
    ),
    networks=(
        SeedNetwork(
            id="vpc-0aaaaaaaaaaaaaaa1",
            subnets=tuple(
                SeedSubnet(id=name, zone=f"us-east-1{zone}") for name, zone in zip(SUBNETS, "ab", strict=True)
            ),
        ),
    ),
    keys=(SeedKey(id=KEY),),
    buckets=(SeedBucket(name="given-bucket"),),
)


def test_seeded_resources_have_their_ids_and_are_not_leaks(account: EmulatedAws) -> None:
    account.seed(SEED)
    before = account.list_resources()
    ec2 = boto3.client("ec2", region_name=REGION)
    (reservation_entry,) = ec2.describe_capacity_reservations(CapacityReservationIds=["cr-0aaaaaaaaaaaaaaa1"])[
        "CapacityReservations"
    ]
    assert (
        reservation_entry["TotalInstanceCount"],
        reservation_entry["State"],
        reservation_entry["InstanceMatchCriteria"],
    ) == (3, "active", "targeted")
    assert [subnet["VpcId"] for subnet in ec2.describe_subnets(SubnetIds=list(SUBNETS))["Subnets"]] == [
        SEED.networks[0].id
    ] * 2
    assert boto3.client("kms", region_name=REGION).describe_key(KeyId=KEY)["KeyMetadata"]["KeyState"] == "Enabled"
    versioning = boto3.client("s3", region_name=REGION).get_bucket_versioning(Bucket="given-bucket")
    assert versioning["Status"] == "Enabled"
    assert leaked_resources(before, account.list_resources(), ()) == []


def test_existing_seed_resources_are_unchanged(account: EmulatedAws) -> None:
    account.seed(SEED)
    before = account.list_resources()
    account.seed(SEED)
    assert account.list_resources() == before


def test_seeded_private_subnet_routes_to_a_nat_gateway(account: EmulatedAws) -> None:
    account.seed(SEED)
    ec2 = boto3.client("ec2", region_name=REGION)
    by_subnet = [{"Name": "association.subnet-id", "Values": [SUBNETS[1]]}]
    (table,) = ec2.describe_route_tables(Filters=by_subnet)["RouteTables"]
    (gateway,) = [route["NatGatewayId"] for route in table["Routes"] if "NatGatewayId" in route]
    (nat,) = ec2.describe_nat_gateways(NatGatewayIds=[gateway])["NatGateways"]
    assert (nat["State"], nat["VpcId"]) == ("available", SEED.networks[0].id)


@pytest.mark.parametrize(
    ("reservation", "reason"),
    [
        ({"instance_type": "p9.huge"}, "no instance type p9.huge"),
        ({"zone": "us-east-1q"}, "has no Availability Zone us-east-1q"),
    ],
)
def test_invalid_seed_is_refused_and_creates_nothing(
    account: EmulatedAws, reservation: dict[str, str], reason: str
) -> None:
    reservation_entry = {
        "id": "cr-0aaaaaaaaaaaaaaa9",
        "instance_type": "p4d.24xlarge",
        "zone": "us-east-1a",
        "count": 1,
    }
    invalid_seed = AccountSeed.model_validate(
        {"region": REGION, "reservations": [{**reservation_entry, **reservation}], "buckets": [{"name": "never-made"}]}
    )
    before = account.list_resources()
    with pytest.raises(ValueError, match=reason):
        account.seed(invalid_seed)
    assert account.list_resources() == before
