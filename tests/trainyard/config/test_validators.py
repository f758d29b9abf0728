"""Each validator reports its examples, accepts a valid stack, and runs when a stack file is loaded."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.trainyard.config.stacks import changed
from trainyard.config import CONFIG_KEY, validators
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.config.validators import VALIDATORS, Validator
from trainyard.errors import InputError, Problem

BLOCK = {"capacity_block": {"id": "cr-0123456789abcdef0"}}
EXISTING = {"vpc_id": "vpc-0123456789abcdef0", "subnet_id": "subnet-0123456789abcdef0"}
CONTAINER = "nvcr.io/nvidia/pytorch:26.10-py3"
P5 = {"instance_type": "p5.48xlarge", "root_volume_gib": 200, "job.train.batch_size": 64}
EFA = {"efa": True, "storage_capacity_gib": 4800, "throughput_mbps_per_tib": 1000}


class Example(NamedTuple):
    """Changes to a valid stack, the key of the problem, and facts that its message contains.

    `code`: code of the problem; by default the name of the validator.
    """

    changes: Mapping[str, Any]
    key: str
    facts: tuple[str, ...] = ()
    code: str = ""


def custom_job(source: str | None, command: list[str] | None) -> dict[str, Any]:
    return {"job.train": None, "job.source": source, "job.command": command}


CUSTOM = custom_job("mine", ["train.py"])
OFFLINE = {"network": {"nat_gateway": False}, "node": {"provisioning": "skip"}}
PRETRAINED = {"kind": "hugging_face", "weights": True}
KEY = "arn:aws:kms:us-east-1:123456789012:key/mine"
# The texts are joined here, so that no scanner of this repository reports them.
CREDENTIALS = {
    "an AWS access key id": "AKIA" + "B" * 16,
    "a GitHub token": "ghp_" + "a1" * 18,
    "a GitLab token": "glpat-" + "a1" * 10,
    "a Hugging Face token": "hf_" + "a1" * 17,
    "a Slack token": "xoxb-" + "1" * 12,
    "an API key": "sk-" + "a1" * 20,
    "a private key": "-----BEGIN RSA PRIVATE " + "KEY-----",
    "a password in a URL": "postgres://me:" + "x1@host/db",
}
UNEVEN_BATCH = "batch_size_not_divisible"
EXAMPLES: dict[str, list[Example]] = {
    "one_purchase_option": [
        Example({"capacity": {"on_demand": {}, "spot": {}}}, "capacity", ("['on_demand', 'spot']",)),
    ],
    "zones_not_decided_elsewhere": [
        Example({"capacity": {"zones": ["us-east-1a"]}, "network.existing": EXISTING}, "capacity.zones", ("subnet",)),
        Example({"capacity": {"zones": []}}, "capacity.zones", ("has no zone",)),
        Example({"capacity": {"zones": ["us-east-1a"] * 2}}, "capacity.zones", ("repeats",)),
        Example({"capacity": {"zones": ["us-east-1a", "us-east-1b"]}, "fsx": {}}, "capacity.zones", ("FSx",)),
    ],
    "spot_nodes_above_base": [
        Example(
            {"capacity": {"spot_above_base": {"base_nodes": count}}},
            "capacity.spot_above_base.base_nodes",
            (f"= {count}", f"nodes to {count + 1} or more"),
        )
        for count in (2, 5)
    ],
    "spot_types_have_equal_gpus": [
        Example({"capacity": {"spot": {"instance_types": ["g5.xlarge"]}}}, "capacity.spot.instance_types.0", ("GPUs",)),
        Example(
            {"capacity": {"spot": {"instance_types": ["c7i.xlarge"]}}}, "capacity.spot.instance_types.0", ("repeated",)
        ),
        Example(
            {**P5, "capacity": {"spot": {"equal_gpus": True}}}, "capacity.spot.equal_gpus", ("no other", "p5.48xlarge")
        ),
        Example(
            {"capacity": {"spot": {"equal_gpus": True, "instance_types": ["c7i.2xlarge"]}}},
            "capacity.spot.instance_types",
            ("equal_gpus",),
        ),
        Example(
            {"instance_type": "g6e.8xlarge", "capacity": {"spot": {"instance_types": ["g6e.4xlarge"]}}},
            "capacity.spot.instance_types.0",
            ("EFA interfaces of g6e.8xlarge",),
        ),
    ],
    "interruptible_reservation_named": [
        Example(
            {"capacity": {"reservation": {"interruptible": True}}},
            "capacity.reservation.interruptible",
            ("capacity.reservation.id",),
        ),
    ],
    "capacity_search_used": [
        Example({"capacity": {"wait_minutes": 10}}, "capacity.wait_minutes", ("= 10", "c7i.xlarge has no GPU")),
        Example({"capacity": {"reserve": True}}, "capacity.reserve", ("= True", "c7i.xlarge has no GPU")),
        Example({**P5, "capacity": {"spot": {}, "reserve": False}}, "capacity.reserve", ("Spot Instances",)),
        Example({**P5, "capacity": {"reserve": False, "wait_minutes": 5}}, "capacity.wait_minutes", ("reserve is",)),
        Example({**P5, "capacity": {**BLOCK, "wait_minutes": 5}}, "capacity.wait_minutes", ("capacity_block.id",)),
        Example({**P5, "capacity": {"reservation": {}, "wait_minutes": 5}}, "capacity.wait_minutes", ("reservation",)),
    ],
    "expiry_of_named_reservation": [
        Example(
            {"capacity": {"reservation": {"on_expiry": "refuse"}}},
            "capacity.reservation.on_expiry",
            ("= 'refuse'", "capacity.reservation.id"),
        ),
    ],
    "placement_group_not_of_reservation": [
        Example(
            {"capacity": {"reservation": {"id": "cr-0123456789abcdef0"}}, "network.placement_group": True},
            "network.placement_group",
            ("= True", "cr-0123456789abcdef0"),
        ),
    ],
    "purchase_option_offered": [
        Example({"capacity": BLOCK}, "capacity.capacity_block", ("c7i.xlarge",)),
        Example({"instance_type": "p5e.48xlarge"}, "capacity", ("p5e.48xlarge",)),
    ],
    "head_without_gpus": [
        Example({"head_instance_type": name}, "head_instance_type", (name,)) for name in ("g5.xlarge", "p5e.48xlarge")
    ],
    "gpu_supported_by_torch": [
        Example({"instance_type": name}, "instance_type", (name, "V100", "12.9"))
        for name in ("p3.2xlarge", "p3dn.24xlarge")
    ],
    "gpu_driver_installed": [
        Example({"image": image, "instance_type": "g5.xlarge", **skipped}, "image", (image, "g5.xlarge"))
        for image, skipped in (
            ("ubuntu-24.04", {"node.provisioning": "skip"}),
            ("debian-12", {"node.skip_roles": ["nvidia_driver"]}),
        )
    ],
    "image_matches_instance_type": [
        Example({"image": image}, "image", ("c7i.xlarge",)) for image in ("deep-learning", "deep-learning-20260918")
    ],
    "root_volume_fits_image": [
        Example({"instance_type": "g5.xlarge", "root_volume_gib": 60}, "root_volume_gib", ("= 60",)),
    ],
    "efa_supported": [Example({"network.efa": True}, "network.efa", ("c7i.xlarge", "Elastic Fabric Adapter"))],
    "placement_group_supported": [
        Example(
            {"network.placement_group": True, "instance_type": "t3.large"}, "network.placement_group", ("t3.large",)
        ),
    ],
    "no_placement_group_with_capacity_block": [
        Example({"network.placement_group": True, "capacity": BLOCK}, "network.placement_group", ("Capacity Block",)),
    ],
    "cidr_has_enough_addresses": [
        Example({"network.cidr": "10.0.0.0/8"}, "network.cidr", ("/16",)),
        Example({"network.cidr": "10.0.0.0/25"}, "network.cidr", ("/24",)),
        Example({"network.cidr": "10.0.0.0/24", "nodes": 20}, "network.cidr", ("27 free", "needs 37")),
        Example({"network.cidr": "10.0.0.0/24", "nodes": 10, "fsx": {}}, "network.cidr", ("needs 35",)),
    ],
    "cidr_is_private": [
        Example({"network.cidr": "8.8.0.0/16"}, "network.cidr", ("not a private block",)),
        Example({"network.cidr": "172.32.0.0/16"}, "network.cidr", ("not a private block",)),
        Example({"network.cidr": "172.17.0.0/16"}, "network.cidr", ("overlaps 172.17.0.0/16",)),
        Example({"network.cidr": "172.17.128.0/20"}, "network.cidr", ("overlaps 172.17.0.0/16",)),
    ],
    "existing_network_not_configured": [
        Example({"network.existing": EXISTING, f"network.{key}": value}, f"network.{key}", (repr(value),))
        for key, value in (
            ("cidr", "10.0.0.0/16"),
            ("nat_gateway", True),
            ("flow_log_retention_days", 7),
        )
    ],
    "software_reachable_without_nat": [Example({"network.nat_gateway": False}, "network.nat_gateway")],
    "venv_is_absolute": [Example({"node.venv": "job-venv"}, "node.venv", ("'job-venv'",))],
    "ca_certificate_is_valid": [
        Example({"node.ca_certificate": certificate}, "node.ca_certificate", (reason,))
        for certificate, reason in (
            ("no-such-file.pem", "not readable"),
            ("-----BEGIN CERTIFICATE-----\nx", "no valid certificate"),
        )
    ],
    "package_index_is_valid": [
        Example({"node.package_index": index}, "node.package_index", (repr(index),))
        for index in ("pypi", "s3://mine/wheels")
    ],
    "fsx_has_the_dataset": [
        Example({"job.data": "fsx"}, "job.data", ("no file system",)),
        Example({"job.data": "fsx", "fsx": {}}, "job.data", ("fsx.data_repository is false",)),
    ],
    "container_for_custom_job": [Example({"job.container": CONTAINER}, "job.container", (CONTAINER,))],
    "role_variables_exist": [Example({"node.variables": {"base_nofile": 1}}, "node.variables", ("'base_nofile'",))],
    "backups_supported": [
        Example({"fsx": {**fsx, "backup_retention_days": 7}}, "fsx.backup_retention_days", ("= 7",))
        for fsx in ({"data_repository": True}, {"export": True}, {"deployment_type": "SCRATCH_2"})
    ],
    "throughput_configurable": [
        Example(
            {"fsx": {"deployment_type": "SCRATCH_2", "throughput_mbps_per_tib": 250}},
            "fsx.throughput_mbps_per_tib",
            ("= 250", "200 MB/s per TiB"),
        ),
    ],
    "metadata_configurable": [
        Example({"fsx": {"deployment_type": "SCRATCH_2", "metadata_iops": iops}}, "fsx.metadata_iops", (str(iops),))
        for iops in (12000, "automatic")
    ],
    "fsx_supports_efa": [
        Example({**P5, "fsx": {"efa": True, "deployment_type": "SCRATCH_2"}}, "fsx.efa", ("SCRATCH_2",)),
        Example({**P5, "fsx": {"efa": True}}, "fsx.storage_capacity_gib", ("= 1200", "250 MB/s per TiB", "19200 GiB")),
    ],
    "nodes_support_fsx_efa": [
        Example({"fsx": EFA}, "fsx.efa", ("no EFA interfaces",)),
        Example({**P5, "instance_type": "p4d.24xlarge", "fsx": EFA}, "fsx.efa", ("p4d.24xlarge", "Nitro v4")),
        Example(
            {**P5, "fsx": EFA, "network": {"nat_gateway": False}, "node.package_index": "/wheels"},
            "fsx.efa",
            ("without a NAT gateway",),
        ),
    ],
    "existing_bucket_not_configured": [
        Example({"storage.bucket": "mine", f"storage.{key}": value}, f"storage.{key}", (f"= {value!r}",))
        for key, value in (
            *(("noncurrent_version_days", 9), ("archive_after_days", 9), ("lock_results_days", 9)),
            ("access_log_bucket", "our-logs"),
        )
    ],
    "tag_count_allowed": [
        Example({"tags": {f"key{number}": "" for number in range(60)}}, "tags", ("'60 tags'", "at most 46")),
    ],
    "tags_not_reserved": [Example({"tags": {key: "x"}}, f"tags.{key}") for key in ("Name", "name", "trainyard:stack")],
    "tag_keys_differ_in_case": [Example({"tags": {"Team": "a", "team": "b"}}, "tags.team", ("Team",))],
    "cost_below_limit": [
        Example(
            {"guardrails.max_cost_usd": 1, "job.time_limit_minutes": 720},
            "guardrails.max_cost_usd",
            ("to 111 or less",),
        ),
        Example({"guardrails.max_cost_usd": 0.001}, "guardrails.max_cost_usd", ("or choose fewer nodes",)),
    ],
    "budget_amount_of_budget": [
        Example({"guardrails.budget": False, "guardrails.budget_usd": 10}, "guardrails.budget_usd"),
    ],
    "exactly_one_job_kind": [
        Example({"job.train": None}, "job.train"),
        Example({"job.source": "mine", "job.command": ["train.py"]}, "job.train"),
        Example({"job.train": None, "job.source": "mine"}, "job.command"),
        Example({"job.train": None, "job.command": ["train.py"]}, "job.source"),
    ],
    "source_exists": [
        Example(custom_job("nowhere", ["train.py"]), "job.source", ("'nowhere'",)),
        Example(custom_job("mine/train.py", ["train.py"]), "job.source", ("is a file",)),
        Example(custom_job("mine", ["absent.py"]), "job.command", ("'absent.py'", "no such file")),
        Example(custom_job("mine", ["/usr/bin/env"]), "job.command", ("outside mine",)),
        Example(custom_job("mine", ["../theirs.py"]), "job.command", ("outside mine",)),
    ],
    "training_fits_processes": [
        Example({"job.train": {"batch_size": 30}}, "job.train.batch_size", ("(2 nodes x 2)",), UNEVEN_BATCH),
        Example({"nodes": 3}, "job.train.batch_size", ("= 32", "4 x 6"), UNEVEN_BATCH),
        Example(
            {"job.train": {"parallel": {"tensor": 4}, "model": {"kv_heads": 4}}},
            "job.train.parallel.tensor",
            ("= 4", "(2 nodes x 2)"),
            "tensor_parallel_not_a_divisor",
        ),
    ],
    "min_nodes_possible": [
        Example({"min_nodes": 2}, "min_nodes", ("= 2", "the job has 2 nodes")),
        Example(
            {"nodes": 4, "min_nodes": 3, "job.train": {"batch_size": 32}},
            "min_nodes",
            ("fewer than 4", "batch_size 32"),
        ),
    ],
    "one_gpu_per_process": [
        Example(
            {"instance_type": "p4d.24xlarge", "job.processes_per_node": 9}, "job.processes_per_node", ("= 9", "8 GPUs")
        ),
        Example({"instance_type": "g5.xlarge"}, "job.processes_per_node", ("= 2", "1 GPU,")),
    ],
    "precision_supported_by_gpu": [
        Example({"instance_type": "g4dn.12xlarge"}, "job.train.precision", ("T4", "Set it to fp16")),
        Example(
            {"instance_type": "p4d.24xlarge", "job.train": {"precision": "float8", "model": {"preset": "1b"}}},
            "job.train.precision",
            ("A100", "Set it to bf16"),
        ),
        Example(
            {
                "instance_type": "p5.48xlarge",
                "job.train": {"precision": "mxfp8", "parallel": {"data": "fsdp"}, "model": {"preset": "1b"}},
            },
            "job.train.precision",
            ("H100", "Set it to bf16"),
        ),
    ],
    "builtin_corpus_matches_model": [
        Example(
            {"job.builtin_corpus": True, "job.train": {"model": {"vocabulary": 128}}},
            "job.train.model.vocabulary",
            ("= 128", "256 token ids"),
        ),
        Example({"job.builtin_corpus": True, "job.train": {"model": {"kind": "images"}}}, "job.builtin_corpus"),
    ],
    "dry_run_is_possible": [
        Example({"job.dry_run": ["train.py"]}, "job.dry_run", ("built-in trainer",)),
        Example(
            {**custom_job("mine", ["train.py"]), "job.dry_run": ["train.py"], "job.container": CONTAINER},
            "job.dry_run",
            ("container",),
        ),
    ],
    "variables_defined_once": [
        Example({"job.secrets": {"TOKEN": "/token"}, "job.environment": {"TOKEN": "x"}}, "job.secrets.TOKEN"),
    ],
    "variables_not_reserved": [
        Example({"job.environment": {"WORLD_SIZE": "7"}}, "job.environment.WORLD_SIZE"),
        Example({"job.secrets": {"AWS_SECRET_ACCESS_KEY": "k"}}, "job.secrets.AWS_SECRET_ACCESS_KEY"),
        Example({"job.environment": {"AWS_SESSION_TOKEN": "k"}}, "job.environment.AWS_SESSION_TOKEN", ("IAM role",)),
    ],
    "secrets_not_in_environment": [
        Example({"job.environment": {name: "x1"}}, f"job.environment.{name}", (f"job.secrets.{name}", "the name"))
        for name in ("HF_TOKEN", "WANDB_API_KEY", "token", "S3_SECRET", "DB_PASSWORD", "PASSWORD_OF_DB", "MY_KEY")
    ]
    + [
        Example({"job.environment": {"NOTE": f"see {value}"}}, "job.environment.NOTE", (f"contains {kind}",))
        for kind, value in CREDENTIALS.items()
    ],
    "secrets_not_in_command": [
        Example({**CUSTOM, "job.command": ["train.py", *arguments]}, f"job.command.{number}", ("job.secrets",))
        for arguments, number in (
            (["--hf-token=x1"], 1),
            (["--hf-token", "x1"], 2),
            (["HF_TOKEN=x1"], 1),
            ([CREDENTIALS["a GitHub token"]], 1),
        )
    ]
    + [Example({**CUSTOM, "job.dry_run": ["train.py", "--api-key=x1"]}, "job.dry_run.1", ("--api-key",))],
    "secrets_not_in_node_variables": [
        Example({"node.variables": {"registry": {"password": "x1"}}}, "node.variables.registry", ("job.secrets",)),
        Example({"node.variables": {"urls": ["https://me:x1@host/"]}}, "node.variables.urls", ("in a URL",)),
    ],
    "time_limit_after_startup": [
        Example({"job.time_limit_minutes": 45}, "job.time_limit_minutes", ("= 45.0",)),
        Example({"launch.startup_timeout_minutes": 2000}, "job.time_limit_minutes", ("2000 minutes",)),
    ],
    "health_checks_fit_startup": [
        Example({"launch.health_check_timeout_minutes": 30}, "launch.health_check_timeout_minutes", ("= 30.0",)),
        Example({"launch.startup_timeout_minutes": 6}, "launch.health_check_timeout_minutes", ("less than 3,",)),
    ],
    "one_source_of_data": [
        Example({"job.data": "s3://corpora/books"}, "job.dataset", ("s3://corpora/books/",)),
        Example({"job.data": "s3://corpora/b", "job.dataset": None, "job.builtin_corpus": True}, "job.builtin_corpus"),
    ],
    "dataset_named": [
        Example({"job.dataset": None}, "job.dataset", ("built-in trainer",)),
        Example({**CUSTOM, "job.dataset": None, "job.builtin_corpus": True}, "job.dataset", ("builtin_corpus",)),
        Example({**CUSTOM, "job.dataset": None, "job.data": "fsx"}, "job.dataset", ("fsx",)),
    ],
    "kms_keys_used": [Example({"job.kms_keys": [KEY]}, "job.kms_keys", ("another bucket",))],
    "hub_reachable": [
        Example({**OFFLINE, "job.model": "hf://org/m"}, "job.model", ("without a NAT gateway",)),
        Example({**CUSTOM, **OFFLINE, "job.model": "hf://org/m"}, "job.model", ("without a NAT gateway",)),
    ],
    "model_path_exists": [
        Example({"job.train": {"model": {**PRETRAINED, "path": "$MODEL_PATH"}}}, "job.train.model.path"),
        Example({"job.train": {"model": {**PRETRAINED, "path": "models/m"}}}, "job.train.model.path", ("absolute",)),
    ],
    "fsx_paths_have_a_file_system": [
        Example({"job.train": {"model": {**PRETRAINED, "path": "/fsx/m"}}}, "job.train.model.path", ("/fsx",)),
        Example({**CUSTOM, "job.command": ["train.py", "--model=/fsx/m"]}, "job.command.1", ("/fsx",)),
        Example({"job.environment": {"WEIGHTS": "/fsx"}}, "job.environment.WEIGHTS", ("MODEL_PATH",)),
    ],
}
BY_NAME = {validator.__name__: validator for validator in VALIDATORS}
CASES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
each_validator = pytest.mark.parametrize("validator", VALIDATORS, ids=list(BY_NAME))
each_example = pytest.mark.parametrize(("name", "example"), CASES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a job folder and a script outside it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").touch()
    (tmp_path / "theirs.py").touch()
    return tmp_path


def test_every_validator_has_examples_and_a_unique_name() -> None:
    assert sorted(EXAMPLES) == sorted(validator.__name__ for validator in VALIDATORS)


@each_example
def test_validator_reports_its_example(name: str, example: Example, root: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_settings(changed(example.changes), root, "stacks/x.yaml")
    (problem,) = [problem for problem in caught.value.problems if problem.code == (example.code or name)]
    assert problem.key == f"{CONFIG_KEY}.{example.key}"
    assert [fact for fact in example.facts if fact not in str(problem)] == []


@each_example
def test_problem_has_a_one_line_reason_and_fix(name: str, example: Example, root: Path) -> None:
    (problem,) = BY_NAME[name](StackSettings.model_validate(changed(example.changes)), root)
    for part in (problem.reason, problem.fix):
        assert part.strip() == part != ""
        assert not part.endswith(".")
    assert problem.fix[0].isupper()
    assert "\n" not in str(problem)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith("secrets_not_in")])
def test_problem_of_a_secret_does_not_repeat_it(name: str, root: Path) -> None:
    for example in EXAMPLES[name]:
        (problem,) = BY_NAME[name](StackSettings.model_validate(changed(example.changes)), root)
        assert problem.value is None
        assert not [value for value in ("x1", *CREDENTIALS.values()) if value in str(problem)]


@each_validator
def test_validator_accepts_a_valid_stack(validator: Validator, root: Path) -> None:
    assert list(validator(StackSettings.model_validate(changed({})), root)) == []


@each_validator
def test_validator_runs_on_load(validator: Validator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def always(settings: StackSettings, root: Path) -> Iterator[Problem]:
        yield Problem("test", None, "always", "None", "")

    replaced = tuple(always if each is validator else each for each in VALIDATORS)
    monkeypatch.setattr(validators, "VALIDATORS", replaced)
    with pytest.raises(InputError, match="always"):
        load_settings(changed({}), tmp_path, "stacks/x.yaml")


@pytest.mark.parametrize("capacity", [{}, {"reserve": True, "wait_minutes": 5}, {"reserve": False}])
def test_search_for_capacity_of_on_demand_gpu_nodes_is_accepted(capacity: dict[str, Any], root: Path) -> None:
    settings = StackSettings.model_validate(changed({**P5, "capacity": capacity}))
    assert list(BY_NAME["capacity_search_used"](settings, root)) == []


def test_search_for_capacity_of_a_base_is_accepted(root: Path) -> None:
    capacity = {"spot_above_base": {"base_nodes": 1}, "wait_minutes": 5}
    settings = StackSettings.model_validate(changed({**P5, "capacity": capacity}))
    assert list(BY_NAME["capacity_search_used"](settings, root)) == []


def test_misspelled_role_variable_is_corrected() -> None:
    root = Path(__file__).parents[3]
    settings = StackSettings.model_validate(changed({"node.variables": {"base_nofile": 65536, "base_nofil": 1}}))
    (problem,) = BY_NAME["role_variables_exist"](settings, root)
    assert (problem.value, problem.fix) == ("base_nofil", "Write base_nofile")
