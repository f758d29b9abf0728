"""Bad settings end with one clear message each, good ones say what they imply."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.trainyard.config.stacks import changed
from tools.docs.stack_reference import kind_of, models_in
from trainyard.base import InputError
from trainyard.config.loader import read_settings
from trainyard.config.settings import StackSettings
from trainyard.config.validation_messages import WORDINGS

# What is changed (path, value), and what the message must name.
BAD: list[tuple[str, Any, str]] = [
    ("instance_typ", "c7i.xlarge", "trainyard:cluster.instance_typ = 'c7i.xlarge': no such key"),
    ("instance_type", "p9.huge", "instance_type = 'p9.huge': not in trainyard"),
    ("head_instance_type", "t9.nano", "head_instance_type = 't9.nano': not in trainyard"),
    ("nodes", 0, "nodes = 0: must be greater than 0"),
    ("nodes", "two", "nodes = 'two': not a whole number"),
    ("nodes", 4096, "nodes = 4096"),
    ("job", None, "job = None"),
    ("job.name", "Two Words", "job.name = 'Two Words'"),
    ("job.train", {"steps": -1}, "job.train.steps = -1"),
    ("job.train", {"stepz": 1}, "job.train.stepz = 1: no such key"),
    ("job.train", {"model": {"heads": 3}}, "job.train.model = {'heads': 3}: dim 128 must be an even multiple of"),
    ("job.train", {"model": {"dim": "wide"}}, "trainyard:cluster.job.train.model.dim = 'wide': not a whole number"),
    ("job.train", {"model": 7}, "job.train.model = 7: not an object with keys of its own"),
    (
        "job.train",
        {"model": {"kind": "llama"}},
        "job.train.model.kind = 'llama': not one of 'decoder', 'hugging_face', 'images'. Write one of these",
    ),
    ("job.train", {"model": {"kind": "images", "dim": 64}}, "job.train.model.dim = 64: no such key"),
    ("job.train", {"model": {"kind": "hugging_face"}}, "job.train.model = {'kind': 'hugging_face'}: names no model"),
    ("job.train", {"optimizer": {"learning_rate": 1e-5}}, "min_learning_rate 0.0003 is above learning_rate"),
    ("job.train", {"precision": "int8"}, "job.train.precision = 'int8'"),
    ("job.source", "/etc", "must be a path below the folder of Pulumi.yaml"),
    ("job.source", "../other", "must be a path below the folder of Pulumi.yaml"),
    ("network", {"cidr": "10.0.0.1/16"}, "network.cidr = '10.0.0.1/16'"),
    ("fsx", {"capacity_gib": 3000}, "fsx.capacity_gib = 3000"),
    ("fsx", {"throughput_mbps_per_tib": 300}, "fsx.throughput_mbps_per_tib = 300"),
    ("root_volume_gib", 8, "root_volume_gib = 8"),
    ("launch", {"lease_minutes": 1}, "launch.lease_minutes = 1"),
    ("node", {"system": "magic"}, "node.system = 'magic': not one of 'configure' or 'as-is'. Write one of these in"),
    ("tags", {"team": 7}, "tags.team = 7: not text. Write text, in quotes"),
    ("job.builtin_corpus", "maybe", "job.builtin_corpus = 'maybe': neither true nor false. Write true or false in"),
    ("job.train", {"optimizer": {"beta1": 1}}, "job.train.optimizer.beta1 = 1: must be less than 1"),
    ("job.dataset", "My Data", "job.dataset = 'My Data': must be up to 63 lower-case letters, digits"),
    ("job.resume", "../other", "job.resume = '../other': must be the id of a run, such as 20260131-183012-base-4f1a"),
    ("job.secrets", {"API-KEY": "k"}, "job.secrets.API-KEY = 'API-KEY': must be the name of an environment variable"),
    ("job.secrets", {"KEY": "a b"}, "job.secrets.KEY = 'a b': must be the name of an SSM parameter"),
    ("job.environment", {"1ST": "x"}, "job.environment.1ST = '1ST': must be the name of an environment variable"),
    ("instance_type", ["c7i.xlarge"], "instance_type = ['c7i.xlarge']: not text"),
    ("instance_type", "p4d.24xlrage", "which has p4d.24xlarge, "),
    ("nodes", 2.5, "nodes = 2.5: not a whole number. Write one such as 2 in stacks/x.yaml."),
    ("nodes", True, "nodes = True: not a whole number"),
    ("nodes", 1025, "nodes = 1025: must be 1024 or less. Write a smaller one"),
    ("nodes", -1, "nodes = -1: must be greater than 0. Write a larger one"),
    ("capacity", "spot", "capacity = 'spot': not an object with keys of its own"),
    ("capacity", {"spots": {}}, "capacity.spots = {}: no such key"),
    ("capacity", {"spot": {"max_price_usd": 0}}, "capacity.spot.max_price_usd = 0: must be greater than 0."),
    ("capacity", {"spot": {"max_price_usd": "low"}}, "capacity.spot.max_price_usd = 'low': not a number"),
    ("capacity", {"spot_above_base": {}}, "capacity.spot_above_base.base_nodes = None: it is missing"),
    ("capacity", {"spot_above_base": {"base_nodes": 0}}, "spot_above_base.base_nodes = 0: must be greater than 0."),
    ("capacity", {"capacity_block": {}}, "capacity.capacity_block.id = None: it is missing"),
    ("capacity", {"capacity_block": {"id": "cr-1"}}, "capacity_block.id = 'cr-1': must be the id of a capacity res"),
    ("capacity", {"reservation": {"id": "lr-0123456789abcdef0"}}, "reservation.id = 'lr-0123456789abcdef0': must be"),
    ("capacity", {"reservation": {"at_its_end": "pay"}}, "at_its_end = 'pay': not one of 'shorten' or 'refuse'"),
    ("image", "ubuntu-22.04", "image = 'ubuntu-22.04': must be deep-learning, ubuntu-24.04, debian-12 or the id"),
    ("image", "ami-XYZ", "image = 'ami-XYZ': must be deep-learning"),
    ("root_volume_gib", 20000, "root_volume_gib = 20000: must be 16384 or less"),
    ("network", {"cidr": "fd00::/64"}, "network.cidr = 'fd00::/64': not an IPv4 range"),
    ("network", {"cidr": 167772160}, "network.cidr = 167772160: not an IPv4 range"),
    ("network", {"zone": "US-EAST-1A"}, "network.zone = 'US-EAST-1A': must be an Availability Zone, such as us-east"),
    ("network", {"zone": "use1-az1"}, "network.zone = 'use1-az1': must be an Availability Zone"),
    ("network", {"flow_logs_days": 4}, "network.flow_logs_days = 4: not one of 1, 3, 5, 7, 14, 30, 60, 90, 180 or"),
    ("network", {"existing": {"vpc_id": "vpc-0123456789abcdef0"}}, "existing.subnet_id = None: it is missing"),
    (
        "network",
        {"existing": {"vpc_id": "my-vpc", "subnet_id": "subnet-0123456789abcdef0"}},
        "network.existing.vpc_id = 'my-vpc': must be the id of a VPC, such as vpc-0123456789abcdef0",
    ),
    ("storage", {"bucket": "My-Bucket"}, "storage.bucket = 'My-Bucket': must be the name of a bucket: 3 to 63 lower"),
    ("storage", {"bucket": "a" * 64}, "aaa': must be the name of a bucket: 3 to 63 lower-case letters"),
    ("storage", {"bucket": "ab"}, "storage.bucket = 'ab': must be the name of a bucket: 3 to 63"),
    ("storage", {"bucket": "s3://mine"}, "storage.bucket = 's3://mine': must be the name of a bucket"),
    ("storage", {"bucket": "-mine"}, "storage.bucket = '-mine': must be the name of a bucket"),
    ("storage", {"kms_key": "alias/mine"}, "storage.kms_key = 'alias/mine': must be the ARN of a KMS key, such as"),
    ("storage", {"kms_key": "arn:aws:kms:us-east-1:1:key/x"}, "storage.kms_key = 'arn:aws:kms:us-east-1:1:key/x'"),
    ("storage", {"noncurrent_days": 0}, "storage.noncurrent_days = 0: must be 1 or more. Write a larger one"),
    ("storage", {"archive_days": 1.5}, "storage.archive_days = 1.5: not a whole number"),
    ("fsx", True, "fsx = True: not an object with keys of its own"),
    ("fsx", {"deployment": "SCRATCH_1"}, "fsx.deployment = 'SCRATCH_1': not one of 'PERSISTENT_2' or 'SCRATCH_2'"),
    ("fsx", {"backup_days": 91}, "fsx.backup_days = 91: must be 90 or less"),
    ("identity", {"permissions_boundary": "boundary"}, "permissions_boundary = 'boundary': must be the ARN of an IAM"),
    ("identity", {"permissions_boundary": "arn:aws:iam::12:policy/b"}, "such as arn:aws:iam::123456789012:policy/"),
    ("identity", {"permissions_boundary": "arn:aws:iam::123456789012:role/b"}, "must be the ARN of an IAM policy"),
    ("guardrails", {"email": "team"}, "guardrails.email = 'team': must be an e-mail address, such as team@example.com"),
    ("guardrails", {"email": "a@b@c.com"}, "guardrails.email = 'a@b@c.com': must be an e-mail address"),
    ("guardrails", {"idle_minutes": 1}, "guardrails.idle_minutes = 1: must be 10 or more"),
    ("guardrails", {"budget_usd": -5}, "guardrails.budget_usd = -5: must be greater than 0."),
    ("guardrails", {"max_cost_usd": float("nan")}, "guardrails.max_cost_usd = nan: not a finite number"),
    ("launch", {"bring_up_minutes": 0}, "launch.bring_up_minutes = 0: must be greater than 0."),
    ("launch", {"lease_minutes": float("inf")}, "launch.lease_minutes = inf: not a finite number"),
    ("job.time_limit_minutes", float("inf"), "job.time_limit_minutes = inf: not a finite number. Write one such as"),
    ("job.time_limit_minutes", True, "job.time_limit_minutes = True: not a number"),
    ("job.processes_per_node", 0, "job.processes_per_node = 0: must be greater than 0."),
    ("job.name", "x" * 32, "must be a lower-case letter, then up to 30 lower-case letters, digits and hyphens"),
    ("job.command", [], "job.command = []: too short: it needs 1 at least"),
    ("job.command", "train.py", "job.command = 'train.py': not a list. Write a list such as [a, b]"),
    ("job.train", {"steps": True}, "job.train.steps = True: not a whole number"),
    ("job.train", {"optimizer": {"learning_rate": float("inf")}}, "learning_rate = inf: not a finite number"),
    ("tags", {"aws:team": "x"}, "tags.aws:team = 'aws:team': must be a tag key: up to 128 letters"),
    ("tags", {"AWS:team": "x"}, "tags.AWS:team = 'AWS:team': must be a tag key"),
    ("tags", {"k" * 129: "x"}, "must be a tag key: up to 128 letters"),
    ("tags", {"team": "v" * 257}, "must be a tag value: up to 256 letters"),
    ("tags", {"team": "R&D"}, "tags.team = 'R&D': must be a tag value"),
    ("tags", ["team"], "tags = ['team']: not an object with keys of its own"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{path}={value}"[:60] for path, value, _ in BAD])
def test_bad_input_is_named(path: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(changed({path: value}), tmp_path, "stacks/x.yaml")
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_efa_and_placement_follow_the_type(tmp_path: Path) -> None:
    def read(instance_type: str) -> StackSettings:
        return read_settings(
            {
                "instance_type": instance_type,
                "nodes": 2,
                "job": {"name": "a", "dataset": "d", "train": {"batch_size": 64}},
            },
            tmp_path,
            "x",
        )

    p4d, t3 = read("p4d.24xlarge"), read("t3.large")
    assert (p4d.efa, p4d.placement_group, p4d.processes_per_node) == (True, True, 8)
    assert (t3.efa, t3.placement_group, t3.processes_per_node) == (False, False, 1)


def keys_of(
    model: type[BaseModel], above: tuple[str, ...] = (), beside: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each key as a path, and what must stand beside it for it to be looked at: the kind of its object."""
    for name, field in model.model_fields.items():
        yield ".".join((*above, name)), beside
        several = models_in(field.annotation)
        for below in several:
            kind = {".".join((*above, name, "kind")): kind_of(below)} if len(several) > 1 else beside
            yield from keys_of(below, (*above, name), kind)


@pytest.mark.parametrize("junk", [None, "x y", "", 0, -1, 2.5, float("nan"), 1e99, [], [[]], {}, {"a b": [1]}, True])
def test_whatever_stands_in_a_key_is_refused_in_our_words(junk: Any, tmp_path: Path) -> None:
    for path, beside in keys_of(StackSettings):
        raw = changed({**beside, path: junk})
        try:
            StackSettings.model_validate(raw)
        except ValidationError as error:
            for item in error.errors():
                assert item["type"] in {*WORDINGS, "value_error"}, f"{path}: {item['msg']}"


@pytest.mark.parametrize("junk", [None, "x y", "", 0, -1, 2.5, float("inf"), 1e99, [], [[]], {}, {"a b": [1]}, True])
def test_whatever_stands_in_a_key_ends_well_or_with_problems(junk: Any, tmp_path: Path) -> None:
    for path, beside in keys_of(StackSettings):
        with suppress(InputError):
            read_settings(changed({**beside, path: junk}), tmp_path, "stacks/x.yaml")
