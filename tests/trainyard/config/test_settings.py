"""Invalid settings are reported with their key and code; defaults follow from other settings."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.problems import rejects
from tests.trainyard.config.stacks import changed
from trainyard.config.loader import load_settings
from trainyard.config.model_fields import kind_of, models_in
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import MESSAGES
from trainyard.errors import InputError

# Path and value of an invalid setting, key and code of its problem.
BAD: list[tuple[str, Any, str, str]] = [
    ("instance_typ", "c7i.xlarge", "instance_typ", "extra_forbidden"),
    ("instance_type", "p9.huge", "instance_type", "unknown_instance_type"),
    ("head_instance_type", "t9.nano", "head_instance_type", "unknown_instance_type"),
    ("nodes", 0, "nodes", "greater_than"),
    ("nodes", "two", "nodes", "int_parsing"),
    ("nodes", 4096, "nodes", "less_than_equal"),
    ("job", None, "job", "model_type"),
    ("job.name", "Two Words", "job.name", "invalid_format"),
    ("job.train", {"steps": -1}, "job.train.steps", "greater_than"),
    ("job.train", {"stepz": 1}, "job.train.stepz", "extra_forbidden"),
    ("job.train", {"model": {"heads": 3}}, "job.train.model", "uneven_head_size"),
    ("job.train", {"model": {"dim": "wide"}}, "job.train.model.dim", "int_parsing"),
    ("job.train", {"model": 7}, "job.train.model", "model_type"),
    ("job.train", {"model": {"kind": "llama"}}, "job.train.model.kind", "union_tag_invalid"),
    ("job.train", {"model": {"kind": "images", "dim": 64}}, "job.train.model.dim", "extra_forbidden"),
    ("job.train", {"model": {"kind": "hugging_face"}}, "job.train.model", "model_source_missing"),
    (
        "job.train",
        {"optimizer": {"learning_rate": 1e-5, "min_learning_rate": 1e-4}},
        "job.train.optimizer.min_learning_rate",
        "learning_rate_below_minimum",
    ),
    ("job.train", {"precision": "int8"}, "job.train.precision", "literal_error"),
    ("job.train", {"loggers": {"wandb": {"project": ""}}}, "job.train.loggers.wandb.project", "string_too_short"),
    ("job.train", {"loggers": {"mlflow": {"experiment": "e"}}}, "job.train.loggers.mlflow.tracking_uri", "missing"),
    ("network", {"cidr": "10.0.0.1/16"}, "network.cidr", "ip_v4_network"),
    ("fsx", {"storage_capacity_gib": 3000}, "fsx.storage_capacity_gib", "invalid_storage_capacity"),
    ("fsx", {"metadata_iops": 2000}, "fsx.metadata_iops", "invalid_metadata_iops"),
    ("fsx", {"metadata_iops": 204000}, "fsx.metadata_iops", "invalid_metadata_iops"),
    ("fsx", {"throughput_mbps_per_tib": 300}, "fsx.throughput_mbps_per_tib", "literal_error"),
    ("fsx", {"export": "runs/"}, "fsx.export", "bool_parsing"),
    ("fsx", {"data_repository": "runs/"}, "fsx.data_repository", "bool_parsing"),
    ("root_volume_gib", 8, "root_volume_gib", "greater_than_equal"),
    ("launch", {"lease_minutes": 1}, "launch.lease_minutes", "greater_than_equal"),
    ("node", {"provisioning": "magic"}, "node.provisioning", "literal_error"),
    ("tags", {"team": 7}, "tags.team", "string_type"),
    ("job.builtin_corpus", "maybe", "job.builtin_corpus", "bool_parsing"),
    ("job.train", {"optimizer": {"beta1": 1}}, "job.train.optimizer.beta1", "less_than"),
    ("job.dataset", "My Data", "job.dataset", "invalid_format"),
    ("job.resume", "../other", "job.resume", "invalid_format"),
    ("job.secrets", {"API-KEY": "k"}, "job.secrets.API-KEY", "invalid_format"),
    ("job.secrets", {"KEY": "a b"}, "job.secrets.KEY", "invalid_format"),
    ("job.environment", {"1ST": "x"}, "job.environment.1ST", "invalid_format"),
    ("instance_type", ["c7i.xlarge"], "instance_type", "string_type"),
    ("instance_type", "p4d.24xlrage", "instance_type", "unknown_instance_type"),
    ("nodes", 2.5, "nodes", "int_from_float"),
    ("nodes", True, "nodes", "int_type"),
    ("nodes", 1025, "nodes", "less_than_equal"),
    ("nodes", -1, "nodes", "greater_than"),
    ("capacity", "spot", "capacity", "model_type"),
    ("capacity", {"spots": {}}, "capacity.spots", "extra_forbidden"),
    ("capacity", {"spot": {"max_price_usd": 0}}, "capacity.spot.max_price_usd", "greater_than"),
    ("capacity", {"spot": {"max_price_usd": "low"}}, "capacity.spot.max_price_usd", "float_parsing"),
    ("capacity", {"spot_above_base": {}}, "capacity.spot_above_base.base_nodes", "missing"),
    ("capacity", {"spot_above_base": {"base_nodes": 0}}, "capacity.spot_above_base.base_nodes", "greater_than"),
    ("capacity", {"capacity_block": {}}, "capacity.capacity_block.id", "missing"),
    ("capacity", {"capacity_block": {"id": "cr-1"}}, "capacity.capacity_block.id", "invalid_format"),
    ("capacity", {"reservation": {"id": "lr-0123456789abcdef0"}}, "capacity.reservation.id", "invalid_format"),
    ("capacity", {"reservation": {"on_expiry": "pay"}}, "capacity.reservation.on_expiry", "literal_error"),
    ("image", "ubuntu-22.04", "image", "invalid_format"),
    ("image", "ami-XYZ", "image", "invalid_format"),
    ("image", "deep-learning-latest", "image", "invalid_format"),
    ("root_volume_gib", 20000, "root_volume_gib", "less_than_equal"),
    ("network", {"cidr": "fd00::/64"}, "network.cidr", "ip_v4_network"),
    ("network", {"cidr": 167772160}, "network.cidr", "ip_v4_network"),
    ("capacity", {"zones": ["US-EAST-1A"]}, "capacity.zones.0", "invalid_format"),
    ("capacity", {"zones": ["use1-az1"]}, "capacity.zones.0", "invalid_format"),
    ("network", {"flow_log_retention_days": 4}, "network.flow_log_retention_days", "literal_error"),
    ("network", {"existing": {"vpc_id": "vpc-0123456789abcdef0"}}, "network.existing.subnet_id", "missing"),
    (
        "network",
        {"existing": {"vpc_id": "my-vpc", "subnet_id": "subnet-0123456789abcdef0"}},
        "network.existing.vpc_id",
        "invalid_format",
    ),
    ("storage", {"bucket": "My-Bucket"}, "storage.bucket", "invalid_format"),
    (
        "storage",
        {"bucket": "a" * 64},
        "storage.bucket",
        "invalid_format",
    ),
    ("storage", {"bucket": "ab"}, "storage.bucket", "invalid_format"),
    ("storage", {"bucket": "s3://mine"}, "storage.bucket", "invalid_format"),
    ("storage", {"bucket": "-mine"}, "storage.bucket", "invalid_format"),
    ("storage", {"kms_key": "alias/mine"}, "storage.kms_key", "invalid_format"),
    ("storage", {"kms_key": "arn:aws:kms:us-east-1:1:key/x"}, "storage.kms_key", "invalid_format"),
    ("storage", {"noncurrent_version_days": 0}, "storage.noncurrent_version_days", "greater_than_equal"),
    ("storage", {"archive_after_days": 1.5}, "storage.archive_after_days", "int_from_float"),
    ("fsx", True, "fsx", "model_type"),
    ("fsx", {"deployment_type": "SCRATCH_1"}, "fsx.deployment_type", "literal_error"),
    ("fsx", {"backup_retention_days": 91}, "fsx.backup_retention_days", "less_than_equal"),
    ("identity", {"permissions_boundary": "boundary"}, "identity.permissions_boundary", "invalid_format"),
    (
        "identity",
        {"permissions_boundary": "arn:aws:iam::12:policy/b"},
        "identity.permissions_boundary",
        "invalid_format",
    ),
    (
        "identity",
        {"permissions_boundary": "arn:aws:iam::123456789012:role/b"},
        "identity.permissions_boundary",
        "invalid_format",
    ),
    ("guardrails", {"email": "team"}, "guardrails.email", "invalid_format"),
    ("guardrails", {"email": "a@b@c.com"}, "guardrails.email", "invalid_format"),
    ("guardrails", {"idle_timeout_minutes": 1}, "guardrails.idle_timeout_minutes", "greater_than_equal"),
    ("guardrails", {"budget_usd": -5}, "guardrails.budget_usd", "greater_than"),
    ("guardrails", {"max_cost_usd": float("nan")}, "guardrails.max_cost_usd", "finite_number"),
    ("launch", {"startup_timeout_minutes": 0}, "launch.startup_timeout_minutes", "greater_than"),
    ("launch", {"lease_minutes": float("inf")}, "launch.lease_minutes", "finite_number"),
    ("job.time_limit_minutes", float("inf"), "job.time_limit_minutes", "finite_number"),
    ("job.time_limit_minutes", True, "job.time_limit_minutes", "float_type"),
    ("job.processes_per_node", 0, "job.processes_per_node", "greater_than"),
    ("job.name", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "job.name", "invalid_format"),
    ("job.command", [], "job.command", "too_short"),
    ("job.command", "train.py", "job.command", "tuple_type"),
    ("job.train", {"steps": True}, "job.train.steps", "int_type"),
    ("job.train", {"optimizer": {"learning_rate": float("inf")}}, "job.train.optimizer.learning_rate", "finite_number"),
    ("tags", {"aws:team": "x"}, "tags.aws:team", "invalid_format"),
    ("tags", {"AWS:team": "x"}, "tags.AWS:team", "invalid_format"),
    (
        "tags",
        {"k" * 129: "x"},
        f"tags.{'k' * 129}",
        "invalid_format",
    ),
    (
        "tags",
        {"team": "v" * 257},
        "tags.team",
        "invalid_format",
    ),
    ("tags", {"team": "R&D"}, "tags.team", "invalid_format"),
    ("tags", ["team"], "tags", "dict_type"),
]


@pytest.mark.parametrize(("path", "value", "key", "code"), BAD, ids=[f"{path}={value}"[:60] for path, value, *_ in BAD])
def test_invalid_setting_is_reported_with_its_key(path: str, value: Any, key: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(changed({path: value}), tmp_path, "stacks/x.yaml")
    (problem,) = caught.value.problems
    assert (problem.key, problem.code) == (f"trainyard:cluster.{key}", code)


def test_similar_instance_types_are_suggested(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p4d\.24xlarge"):
        load_settings(changed({"instance_type": "p4d.24xlrage"}), tmp_path, "stacks/x.yaml")


@pytest.mark.parametrize(
    ("path", "value", "suggestion"),
    [
        ("instance_typ", "c7i.xlarge", "instance_type"),
        ("guardrails", {"max_cost": 5}, "max_cost_usd"),
        ("capacity", {"spot": {"max_price": 5}}, "max_price_usd"),
        ("job.train", {"optimizer": {"learning_rat": 1}}, "learning_rate"),
        ("job.train", {"model": {"kind": "images", "clases": 5}}, "classes"),
    ],
)
def test_similar_keys_of_the_same_level_are_suggested(path: str, value: Any, suggestion: str, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=rf"unknown key\. Did you mean {suggestion}( or \w+)*\? Remove it, or use a key"
    ):
        load_settings(changed({path: value}), tmp_path, "stacks/x.yaml")


def test_places_of_a_key_at_another_level_are_suggested(tmp_path: Path) -> None:
    with rejects("extra_forbidden", "trainyard:cluster.reserve = False", "Did you mean capacity.reserve? "):
        load_settings(changed({"reserve": False}), tmp_path, "stacks/x.yaml")


def test_key_of_another_kind_of_model_is_not_suggested(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(changed({"job.train": {"model": {"kind": "images", "dim": 64}}}), tmp_path, "stacks/x.yaml")
    assert "Did you mean" not in str(caught.value)


def test_unknown_key_names_the_stack_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stacks/x\.yaml"):
        load_settings(changed({"instance_typ": "c7i.xlarge"}), tmp_path, "stacks/x.yaml")


def test_efa_and_placement_group_default_to_the_instance_type(tmp_path: Path) -> None:
    def read(instance_type: str) -> StackSettings:
        return load_settings(
            {
                "instance_type": instance_type,
                "nodes": 2,
                "job": {"name": "a", "dataset": "d", "train": {"batch_size": 64}},
            },
            tmp_path,
            "x",
        )

    p4d, t3 = read("p4d.24xlarge"), read("t3.large")
    assert (p4d.efa, p4d.in_placement_group(p4d.groups[0]), p4d.processes_per_node) == (True, True, 8)
    assert (t3.efa, t3.in_placement_group(t3.groups[0]), t3.processes_per_node) == (False, False, 1)


def setting_keys(
    model: type[BaseModel], parents: tuple[str, ...] = (), selector: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each key as a path, and the `kind` that selects its model in a union."""
    for name, field in model.model_fields.items():
        yield ".".join((*parents, name)), selector
        models = models_in(field.annotation)
        for child in models:
            kind = {".".join((*parents, name, "kind")): kind_of(child)} if len(models) > 1 else selector
            yield from setting_keys(child, (*parents, name), kind)


@pytest.mark.parametrize("junk", [None, "x y", "", 0, -1, 2.5, float("nan"), 1e99, [], [[]], {}, {"a b": [1]}, True])
def test_every_pydantic_error_has_a_message(junk: Any, tmp_path: Path) -> None:
    for path, selector in setting_keys(StackSettings):
        raw = changed({**selector, path: junk})
        try:
            StackSettings.model_validate(raw)
        except ValidationError as error:
            for item in error.errors():
                assert item["type"] in MESSAGES or "reason" in item.get("ctx", {}), f"{path}: {item['msg']}"


@pytest.mark.parametrize("junk", [None, "x y", "", 0, -1, 2.5, float("inf"), 1e99, [], [[]], {}, {"a b": [1]}, True])
def test_any_value_loads_or_raises_input_error(junk: Any, tmp_path: Path) -> None:
    for path, selector in setting_keys(StackSettings):
        with suppress(InputError):
            load_settings(changed({**selector, path: junk}), tmp_path, "stacks/x.yaml")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("data", "s3://corpora/books", "s3://corpora/books/"),
        ("data", "s3://corpora", "s3://corpora/"),
        ("data", "fsx", "fsx"),
        ("model", "s3://m-1/llama/8b/", "s3://m-1/llama/8b/"),
        ("model", "hf://meta-llama/Llama-3.1-8B", "hf://meta-llama/Llama-3.1-8B"),
        ("model", "dataset:llama", "dataset:llama"),
    ],
)
def test_sources_are_prefixes_with_a_slash(key: str, value: str, expected: str) -> None:
    assert getattr(StackSettings.model_validate(changed({f"job.{key}": value})).job, key) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", "disk"),
        ("data", "s3://corpora/*"),  # a wildcard in the policy of the nodes
        ("data", "s3://corpora/${aws:username}/"),
        ("data", "s3://corpora//books/"),
        ("data", "S3://Corpora/"),
        ("model", "meta-llama/Llama-3.1-8B"),
        ("model", "hf://llama"),
        ("model", "dataset:My Model"),
        ("model", "/fsx/models/llama"),
    ],
)
def test_other_sources_are_refused(key: str, value: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        StackSettings.model_validate(changed({f"job.{key}": value}))


def test_password_in_the_address_of_a_service_is_refused_and_not_printed(tmp_path: Path) -> None:
    service = {"tracking_uri": "https://user:key-word@mlflow.example.com", "experiment": "e"}
    with pytest.raises(InputError) as caught:
        load_settings(changed({"job.train": {"loggers": {"mlflow": service}}}), tmp_path, "stacks/x.yaml")
    (problem,) = caught.value.problems
    assert (problem.key.split("job.")[1], problem.code) == ("train.loggers.mlflow.tracking_uri", "credential_in_uri")
    assert "key-word" not in str(problem)
