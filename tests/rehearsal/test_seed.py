"""The resources that a stack names by id are created in the emulated account to match the stack."""

from pathlib import Path
from typing import Any

from rehearsal.aws.seed_models import AccountSeed
from rehearsal.seed import account_seed, to_emulated_account
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings

KEY = "arn:aws:kms:us-east-1:999988887777:key/12345678-1234-1234-1234-123456789012"


def settings(root: Path, **changes: Any) -> StackSettings:
    """Return settings of a GPU stack with changes."""
    job = {"name": "a", "dataset": "d", "train": {"batch_size": 96}}
    raw = {"instance_type": "p4d.24xlarge", "nodes": 3, "root_volume_gib": 150, "job": job, **changes}
    return load_settings(raw, root, "x")


def test_stack_without_existing_resources_needs_no_seed(tmp_path: Path) -> None:
    seed = account_seed(settings(tmp_path), "us-east-1", "us-east-1b")
    assert seed == AccountSeed(region="us-east-1")


def test_reservation_has_the_size_of_its_worker_groups(tmp_path: Path) -> None:
    capacity = {"spot_above_base": {"base_nodes": 2, "base_reservation": "cr-0123456789abcdef0"}}
    (reservation,) = account_seed(settings(tmp_path, capacity=capacity), "us-east-1", "us-east-1b").reservations
    assert (reservation.count, reservation.zone, reservation.instance_type, reservation.block) == (
        2,
        "us-east-1b",
        "p4d.24xlarge",
        False,
    )


def test_interruptible_reservation_is_seeded_so(tmp_path: Path) -> None:
    capacity = {"reservation": {"id": "cr-0123456789abcdef0", "interruptible": True}}
    (reservation,) = account_seed(settings(tmp_path, capacity=capacity), "us-east-1", "us-east-1b").reservations
    assert reservation.interruptible


def test_block_has_an_end(tmp_path: Path) -> None:
    capacity = {"capacity_block": {"id": "cr-0123456789abcdef0"}}
    (reservation,) = account_seed(settings(tmp_path, capacity=capacity), "us-east-1", "us-east-1b").reservations
    assert reservation.block
    assert reservation.end is not None
    assert reservation.paid


def test_bucket_of_access_logs_allows_their_delivery(tmp_path: Path) -> None:
    (bucket,) = account_seed(settings(tmp_path, storage={"access_log_bucket": "our-logs"}), "us-east-1", "b").buckets
    assert (bucket.name, bucket.region, bucket.receives_access_logs) == ("our-logs", "us-east-1", True)


def test_network_bucket_and_key_have_the_ids_of_the_settings(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "network": {"existing": {"vpc_id": "vpc-0123456789abcdef0", "subnet_id": "subnet-0123456789abcdef0"}},
        "storage": {"bucket": "our-data", "kms_key": KEY},
    }
    seed = account_seed(settings(tmp_path, **changes), "us-east-1", "us-east-1b")
    assert (seed.networks[0].id, seed.networks[0].subnets[0].id) == tuple(changes["network"]["existing"].values())
    assert (seed.buckets[0].name, seed.keys[0].id) == ("our-data", KEY.rpartition("/")[2])


def test_arn_is_of_the_emulated_account() -> None:
    assert to_emulated_account(KEY) == KEY.replace("999988887777", "123456789012")


def test_buckets_of_data_and_model_are_in_the_region_of_their_key(tmp_path: Path) -> None:
    key = KEY.replace("us-east-1", "eu-west-1")
    script = {"name": "a", "source": "mine", "command": ["train.py"]}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").touch()
    job = {**script, "data": "s3://corpora/books", "model": "s3://models/llama", "kms_keys": [key]}
    seed = account_seed(settings(tmp_path, job=job), "us-east-1", "us-east-1b")
    assert [(bucket.name, bucket.region) for bucket in seed.buckets] == [
        ("corpora", "eu-west-1"),
        ("models", "eu-west-1"),
    ]
    assert [each.region for each in seed.keys] == ["eu-west-1"]
