"""What a stack says exists is put into the account such that it suits the stack."""

from pathlib import Path
from typing import Any

from rehearsal.aws.seed_models import Given
from rehearsal.seed import given_of, in_this_account
from trainyard.config.loader import read_settings
from trainyard.config.settings import StackSettings

KEY = "arn:aws:kms:us-east-1:999988887777:key/12345678-1234-1234-1234-123456789012"


def settings(root: Path, **changes: Any) -> StackSettings:
    job = {"name": "a", "dataset": "d", "train": {"batch_size": 96}}
    raw = {"instance_type": "p4d.24xlarge", "nodes": 3, "root_volume_gib": 150, "job": job, **changes}
    return read_settings(raw, root, "x")


def test_stack_that_names_nothing_is_given_nothing(tmp_path: Path) -> None:
    given = given_of(settings(tmp_path), "us-east-1", "us-east-1b")
    assert given == Given(region="us-east-1")


def test_reservation_holds_what_is_launched_into_it(tmp_path: Path) -> None:
    capacity = {"spot_above_base": {"base_nodes": 2, "base_reservation": "cr-0123456789abcdef0"}}
    (held,) = given_of(settings(tmp_path, capacity=capacity), "us-east-1", "us-east-1b").reservations
    assert (held.count, held.zone, held.instance_type, held.block) == (2, "us-east-1b", "p4d.24xlarge", False)


def test_block_has_an_end(tmp_path: Path) -> None:
    capacity = {"capacity_block": {"id": "cr-0123456789abcdef0"}}
    (held,) = given_of(settings(tmp_path, capacity=capacity), "us-east-1", "us-east-1b").reservations
    assert held.block
    assert held.end is not None


def test_network_bucket_and_key_are_given_by_their_ids(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "network": {"existing": {"vpc_id": "vpc-0123456789abcdef0", "subnet_id": "subnet-0123456789abcdef0"}},
        "storage": {"bucket": "our-data", "kms_key": KEY},
    }
    given = given_of(settings(tmp_path, **changes), "us-east-1", "us-east-1b")
    assert (given.networks[0].id, given.networks[0].subnets[0].id) == tuple(changes["network"]["existing"].values())
    assert (given.buckets[0].name, given.keys[0].id) == ("our-data", KEY.rpartition("/")[2])


def test_arn_is_of_the_emulated_account() -> None:
    assert in_this_account(KEY) == KEY.replace("999988887777", "123456789012")
