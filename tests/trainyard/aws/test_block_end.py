"""The end of a Capacity Block, from the block's own data."""

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from tests.conftest import REGION
from trainyard.aws.block_end import LAST_CHECKPOINT_SECONDS, read_block, usable_end

START, END = 4070000000.0, 4070950200.0
pytestmark = pytest.mark.usefixtures("account")


def seed_block(account: EmulatedAws, name: str, ultraserver_type: str | None) -> str:
    block = SeedReservation(
        id=name,
        instance_type="p5.48xlarge",
        zone="us-east-1a",
        count=2,
        block=True,
        start=START,
        end=END,
        ultraserver_type=ultraserver_type,
    )
    account.seed(AccountSeed(region=REGION, reservations=(block,)))
    return name


@pytest.mark.parametrize(
    ("name", "ultraserver", "seconds"),
    [("cr-000000000000e0001", None, 1800), ("cr-000000000000e0002", "u-p6e-gb200x72", 3600)],
)
def test_block_ends_before_its_instances_are_terminated(
    account: EmulatedAws, name: str, ultraserver: str | None, seconds: float
) -> None:
    block = seed_block(account, name, ultraserver)
    assert read_block(REGION, block).usable_end == END - seconds - LAST_CHECKPOINT_SECONDS


def test_instance_type_decides_where_the_block_cannot_be_read(account: EmulatedAws) -> None:
    block = seed_block(account, "cr-000000000000e0003", "u-p6e-gb200x72")
    account.inject(Deny(operation="ec2:DescribeCapacityBlocks"))
    try:
        assert read_block(REGION, block).usable_end == END - 1800 - LAST_CHECKPOINT_SECONDS
    finally:
        account.clear_faults()


@pytest.mark.parametrize("instance_type", ["p6e-gb200.36xlarge", "trn2u.48xlarge"])
def test_types_of_ultraservers_end_an_hour_early(instance_type: str) -> None:
    assert usable_end(END, instance_type) == END - 3600 - LAST_CHECKPOINT_SECONDS
