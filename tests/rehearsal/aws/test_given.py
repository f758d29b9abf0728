"""What a stack says exists already stands in the account before it comes, under its ids."""

import boto3
import pytest

from rehearsal.audit import leaked
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import Given, GivenBucket, GivenKey, GivenNetwork, GivenReservation, GivenSubnet

REGION = "us-east-1"
KEY = "12345678-1234-1234-1234-123456789012"
SUBNETS = ("subnet-0aaaaaaaaaaaaaaa1", "subnet-0aaaaaaaaaaaaaaa2")
GIVEN = Given(
    region=REGION,
    reservations=(
        GivenReservation(id="cr-0aaaaaaaaaaaaaaa1", instance_type="p4d.24xlarge", zone="us-east-1b", count=3),
    ),
    networks=(
        GivenNetwork(
            id="vpc-0aaaaaaaaaaaaaaa1",
            subnets=tuple(
                GivenSubnet(id=name, zone=f"us-east-1{zone}") for name, zone in zip(SUBNETS, "ab", strict=True)
            ),
        ),
    ),
    keys=(GivenKey(id=KEY),),
    buckets=(GivenBucket(name="given-bucket"),),
)


def test_all_of_it_is_there_under_its_ids_and_no_leak(account: EmulatedAws) -> None:
    account.give(GIVEN)
    before = account.dump()
    ec2 = boto3.client("ec2", region_name=REGION)
    (held,) = ec2.describe_capacity_reservations(CapacityReservationIds=["cr-0aaaaaaaaaaaaaaa1"])[
        "CapacityReservations"
    ]
    assert (held["TotalInstanceCount"], held["State"], held["InstanceMatchCriteria"]) == (3, "active", "targeted")
    assert [one["VpcId"] for one in ec2.describe_subnets(SubnetIds=list(SUBNETS))["Subnets"]] == [
        GIVEN.networks[0].id
    ] * 2
    assert boto3.client("kms", region_name=REGION).describe_key(KeyId=KEY)["KeyMetadata"]["KeyState"] == "Enabled"
    versioning = boto3.client("s3", region_name=REGION).get_bucket_versioning(Bucket="given-bucket")
    assert versioning["Status"] == "Enabled"
    assert leaked(before, account.dump(), ()) == []


def test_what_is_there_already_is_left_as_it_is(account: EmulatedAws) -> None:
    account.give(GIVEN)
    before = account.dump()
    account.give(GIVEN)
    assert account.dump() == before


def test_nodes_in_a_given_subnet_have_a_way_out(account: EmulatedAws) -> None:
    account.give(GIVEN)
    ec2 = boto3.client("ec2", region_name=REGION)
    by_subnet = [{"Name": "association.subnet-id", "Values": [SUBNETS[1]]}]
    (table,) = ec2.describe_route_tables(Filters=by_subnet)["RouteTables"]
    (gateway,) = [route["NatGatewayId"] for route in table["Routes"] if "NatGatewayId" in route]
    (nat,) = ec2.describe_nat_gateways(NatGatewayIds=[gateway])["NatGateways"]
    assert (nat["State"], nat["VpcId"]) == ("available", GIVEN.networks[0].id)


@pytest.mark.parametrize(
    ("reservation", "why"),
    [
        ({"instance_type": "p9.huge"}, "no instance type p9.huge"),
        ({"zone": "us-east-1q"}, "no zone us-east-1q"),
    ],
)
def test_what_can_not_be_is_told_and_nothing_is_made(
    account: EmulatedAws, reservation: dict[str, str], why: str
) -> None:
    held = {"id": "cr-0aaaaaaaaaaaaaaa9", "instance_type": "p4d.24xlarge", "zone": "us-east-1a", "count": 1}
    wrong = Given.model_validate(
        {"region": REGION, "reservations": [{**held, **reservation}], "buckets": [{"name": "never-made"}]}
    )
    before = account.dump()
    with pytest.raises(ValueError, match=why):
        account.give(wrong)
    assert account.dump() == before
