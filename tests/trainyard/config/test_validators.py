"""Every rule across fields fires where it should, is asked, and reads what it says that it reads."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.trainyard.config.stacks import changed
from trainyard.base import CONFIG_KEY, Contract, InputError, Problem
from trainyard.config import validators as rules
from trainyard.config.loader import read_settings
from trainyard.config.settings import StackSettings
from trainyard.config.validators import RULES, problems_across
from trainyard.config.validators.rule import Rule

BLOCK = {"capacity_block": {"id": "cr-0123456789abcdef0"}}
THERE = {"vpc_id": "vpc-0123456789abcdef0", "subnet_id": "subnet-0123456789abcdef0"}


class Example(NamedTuple):
    """What is changed in a good stack, by path; the key that is told, and words of the sentence."""

    changes: Mapping[str, Any]
    key: str
    says: str


def own_job(source: str | None, command: list[str] | None) -> dict[str, Any]:
    return {"job.source": source, "job.command": command}


EXAMPLES: dict[str, list[Example]] = {
    "capacity_is_one": [
        Example({"capacity": {}}, "capacity", "= []: instances come from one source, so it takes exactly one key"),
        Example({"capacity": {"spot": None}}, "capacity", "= []: instances come from one source"),
        Example({"capacity": {"on_demand": {}, "spot": {}}}, "capacity", "= ['on_demand', 'spot']: instances come"),
    ],
    "base_leaves_room_for_spot": [
        Example(
            {"capacity": {"spot_above_base": {"base_nodes": count}}},
            "capacity.spot_above_base.base_nodes",
            f"= {count}: of 2 nodes none would be spot. Set nodes to {count + 1} or more",
        )
        for count in (2, 5)
    ],
    "type_is_sold_so": [
        Example({"capacity": BLOCK}, "capacity.capacity_block", "c7i.xlarge is not sold in Capacity Blocks"),
        Example({"instance_type": "p5e.48xlarge"}, "capacity", "p5e.48xlarge is sold in Capacity Blocks only"),
    ],
    "head_bears_no_gpu": [
        Example({"head_instance_type": "g5.xlarge"}, "head_instance_type", "'g5.xlarge': the head runs no job"),
        Example({"head_instance_type": "p5e.48xlarge"}, "head_instance_type", "its GPUs would be paid for"),
    ],
    "torch_drives_the_gpu": [
        Example({"instance_type": name}, "instance_type", f"= '{name}': its V100 GPUs are supported up to CUDA 12.9")
        for name in ("p3.2xlarge", "p3dn.24xlarge")
    ],
    "the_driver_is_brought": [
        Example(
            {"image": image, "instance_type": "g5.xlarge", **left_to_it},
            "image",
            f"= '{image}': has no NVIDIA driver, nodes install none, and the job uses the GPUs of g5.xlarge",
        )
        for image, left_to_it in (
            ("ubuntu-24.04", {"node.system": "as-is"}),
            ("debian-12", {"node.leave_out": ["nvidia_driver"]}),
        )
    ],
    "image_suits_the_type": [
        Example({"image": "deep-learning"}, "image", "= 'deep-learning': its driver finds no GPU on c7i.xlarge"),
    ],
    "root_volume_holds_the_image": [
        Example({"instance_type": "g5.xlarge", "root_volume_gib": 60}, "root_volume_gib", "= 60: the deep-learning"),
    ],
    "efa_is_borne": [
        Example({"network.efa": True}, "network.efa", "= True: c7i.xlarge bears no Elastic Fabric Adapter"),
    ],
    "placement_is_borne": [
        Example(
            {"network.placement_group": True, "instance_type": "t3.large"},
            "network.placement_group",
            "= True: t3.large can't be in a cluster placement group",
        ),
    ],
    "block_is_placed_by_aws": [
        Example(
            {"network.placement_group": True, "capacity": BLOCK},
            "network.placement_group",
            "= True: AWS places the instances of a Capacity Block itself",
        ),
    ],
    "addresses_suffice": [
        Example({"network.cidr": "10.0.0.0/8"}, "network.cidr", "= '10.0.0.0/8': the VPC's range must be from /16"),
        Example({"network.cidr": "10.0.0.0/25"}, "network.cidr", "to /24 (room for two subnets)"),
        Example(
            {"network.cidr": "10.0.0.0/24", "nodes": 120},
            "network.cidr",
            "= '10.0.0.0/24': too small: its private half has 123 free addresses, the cluster needs 137",
        ),
        Example({"network.cidr": "10.0.0.0/24", "nodes": 100, "fsx": {}}, "network.cidr", "the cluster needs 125"),
    ],
    "range_is_private": [
        Example({"network.cidr": "8.8.0.0/16"}, "network.cidr", "= '8.8.0.0/16': not a private range"),
        Example({"network.cidr": "172.32.0.0/16"}, "network.cidr", "= '172.32.0.0/16': not a private range"),
        Example({"network.cidr": "172.17.0.0/16"}, "network.cidr", "overlaps 172.17.0.0/16, the bridge of Docker"),
        Example({"network.cidr": "172.17.128.0/20"}, "network.cidr", "= '172.17.128.0/20': overlaps 172.17.0.0/16"),
    ],
    "existing_network_is_its_owners": [
        Example(
            {"network.existing": THERE, f"network.{key}": value},
            f"network.{key}",
            f"= {value!r}: stands beside network.existing, whose owner has decided that. Remove it; or remove",
        )
        for key, value in (("cidr", "10.0.0.0/16"), ("zone", "us-east-1a"), ("nat", True), ("flow_logs_days", 7))
    ],
    "closed_nodes_find_their_software": [
        Example({"network.nat": False}, "network.nat", "= False: without a way out nodes reach no package index"),
    ],
    "venv_is_a_place": [
        Example({"node.venv": "job-venv"}, "node.venv", "= 'job-venv': not an absolute path"),
    ],
    "package_index_is_a_place": [
        Example({"node.package_index": "pypi"}, "node.package_index", "= 'pypi': neither a URL that pip takes, nor"),
        Example(
            {"node.package_index": "s3://mine/wheels"}, "node.package_index", "= 's3://mine/wheels': neither a URL"
        ),
    ],
    "container_runs_an_own_job": [
        Example({"job.container": "nvcr.io/nvidia/pytorch:26.10-py3"}, "job.container", "the built-in trainer runs in"),
    ],
    "variables_are_the_roles": [
        Example(
            {"node.variables": {"base_nofile": 1}}, "node.variables", "= 'base_nofile': no role has such a variable"
        ),
    ],
    "backups_or_link": [
        Example(
            {"fsx": {"data_repository": True, "backup_days": 7}},
            "fsx.backup_days",
            "= 7: a file system that is linked to S3 can have no backups",
        ),
        Example(
            {"fsx": {"deployment": "SCRATCH_2", "backup_days": 7}},
            "fsx.backup_days",
            "= 7: a SCRATCH_2 file system can have no backups",
        ),
    ],
    "throughput_is_of_persistent": [
        Example(
            {"fsx": {"deployment": "SCRATCH_2", "throughput_mbps_per_tib": 250}},
            "fsx.throughput_mbps_per_tib",
            "= 250: SCRATCH_2 has 200 MB/s per TiB, always",
        ),
    ],
    "existing_bucket_is_its_owners": [
        Example(
            {"storage.bucket": "mine", f"storage.{key}": 9},
            f"storage.{key}",
            "= 9: stands beside storage.bucket, and the lifecycle of mine is its owner's",
        )
        for key in ("noncurrent_days", "archive_days")
    ],
    "tags_are_few": [
        Example({"tags": {f"key{number}": "" for number in range(60)}}, "tags", "= '60 tags': AWS lets a resource"),
    ],
    "tags_leave_ours_alone": [
        Example({"tags": {key: "x"}}, f"tags.{key}", "= 'x': Trainyard sets that tag itself")
        for key in ("Name", "name", "trainyard:stack")
    ],
    "tags_differ": [
        Example({"tags": {"Team": "a", "team": "b"}}, "tags.team", "= 'b': differs from Team in case alone, and IAM"),
    ],
    "cost_stays_below_its_cap": [
        Example(
            {"guardrails.max_cost_usd": 1, "job.time_limit_minutes": 720},
            "guardrails.max_cost_usd",
            "USD until job.time_limit_minutes (720). Raise it, set job.time_limit_minutes to 111 or less, or choose",
        ),
        Example({"guardrails.max_cost_usd": 0.001}, "guardrails.max_cost_usd", "Raise it, or choose fewer nodes"),
    ],
    "one_kind_of_job": [
        Example({"job.train": None}, "job.train", "= None: the job says neither what the built-in trainer shall"),
        Example(own_job("mine", ["train.py"]), "job.train", "stands beside source or command"),
        Example(
            {"job.train": None, "job.source": "mine"},
            "job.command",
            "= None: the user's own job needs both source and command",
        ),
        Example(
            {"job.train": None, "job.command": ["train.py"]},
            "job.source",
            "= None: the user's own job needs both source and command",
        ),
    ],
    "source_is_there": [
        Example(own_job("nowhere", ["train.py"]), "job.source", "= 'nowhere': no such folder in "),
        Example(own_job("mine/train.py", ["train.py"]), "job.source", "= 'mine/train.py': is a file, not a folder"),
        Example(own_job("mine", ["absent.py"]), "job.command", "= 'absent.py': no such file in mine"),
        Example(own_job("mine", ["/usr/bin/env"]), "job.command", "= '/usr/bin/env': outside mine, and nothing else"),
        Example(own_job("mine", ["../theirs.py"]), "job.command", "= '../theirs.py': outside mine, and nothing else"),
    ],
    "batch_splits": [
        Example({"job.train": {"batch_size": 30}}, "job.train.batch_size", "x 4 processes (2 nodes x 2)"),
        Example(
            {"nodes": 3}, "job.train.batch_size", "= 32: batch_size 32 is not a multiple of micro_batch_size 4 x 6"
        ),
        Example(
            {"job.train": {"parallel": {"tensor": 4}, "model": {"kv_heads": 4}}},
            "job.train.parallel.tensor",
            "= 4: a node has 2 processes, and each tensor's pieces belong on one node (2 nodes x 2)",
        ),
    ],
    "processes_fit": [
        Example(
            {"instance_type": "p4d.24xlarge", "job.processes_per_node": 9},
            "job.processes_per_node",
            "= 9: p4d.24xlarge has 8 GPUs, and a process needs one of its own",
        ),
        Example({"instance_type": "g5.xlarge"}, "job.processes_per_node", "= 2: g5.xlarge has 1 GPU, and a process"),
    ],
    "precision_is_the_chips": [
        Example(
            {"instance_type": "g4dn.12xlarge"},
            "job.train.precision",
            "= 'bf16': g4dn.12xlarge has T4 GPUs, whose tensor cores lack it. Set it to fp16",
        ),
        Example(
            {"instance_type": "p4d.24xlarge", "job.train": {"precision": "float8", "model": {"vocabulary": 512}}},
            "job.train.precision",
            "= 'float8': p4d.24xlarge has A100 GPUs, whose tensor cores lack it. Set it to bf16",
        ),
    ],
    "corpus_is_for_trainer": [
        Example(
            {"job.builtin_corpus": True, "job.train": {"model": {"vocabulary": 128}}},
            "job.train.model.vocabulary",
            "= 128: the built-in corpus is bytes, 256 token ids",
        ),
        Example(
            {"job.builtin_corpus": True, "job.train": {"model": {"kind": "images"}}},
            "job.builtin_corpus",
            "= True: the built-in corpus is text, and job.train.model is of kind images",
        ),
        Example(
            {
                "job.builtin_corpus": True,
                "job.train": {"model": {"kind": "hugging_face", "task": "masked", "preset": "bert-base"}},
            },
            "job.builtin_corpus",
            "= True: the built-in corpus is bytes, which have no mask token",
        ),
    ],
    "variables_have_one_source": [
        Example(
            {"job.secrets": {"TOKEN": "/token"}, "job.environment": {"TOKEN": "x"}},
            "job.secrets.TOKEN",
            "= '/token': stands in job.environment too, and a variable has one value",
        ),
    ],
    "variables_are_free": [
        Example({"job.environment": {"WORLD_SIZE": "7"}}, "job.environment.WORLD_SIZE", "= '7': torchrun, AWS's SDKs"),
        Example({"job.secrets": {"AWS_SECRET_ACCESS_KEY": "k"}}, "job.secrets.AWS_SECRET_ACCESS_KEY", "torchrun, AWS"),
    ],
    "time_suffices_to_start": [
        Example({"job.time_limit_minutes": 45}, "job.time_limit_minutes", "= 45.0: the workers end then, and bringing"),
        Example({"launch.bring_up_minutes": 2000}, "job.time_limit_minutes", "may take 2000 minutes"),
    ],
    "checks_fit": [
        Example({"launch.verify_minutes": 30}, "launch.verify_minutes", "= 30.0: two checks of the nodes must fit"),
        Example({"launch.bring_up_minutes": 6}, "launch.verify_minutes", "Set it to less than 3, or launch.bring_up"),
    ],
}
BY_NAME = {rule.name: rule for rule in RULES}
CASES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
each_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
each_example = pytest.mark.parametrize(("name", "example"), CASES, ids=[f"{name}:{one.says}" for name, one in CASES])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With the folder of a job in it, and a script beside that."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.py").touch()
    (tmp_path / "theirs.py").touch()
    return tmp_path


@pytest.fixture
def good() -> StackSettings:
    return StackSettings.model_validate(changed({}))


def test_every_rule_has_examples_and_a_name_of_its_own() -> None:
    assert sorted(EXAMPLES) == sorted(rule.name for rule in RULES)
    assert all(EXAMPLES.values())


@each_example
def test_rule_fires_on_its_example(name: str, example: Example, root: Path) -> None:
    raw = changed(example.changes)
    (problem,) = BY_NAME[name].check(StackSettings.model_validate(raw), root)
    assert problem.key == f"{CONFIG_KEY}.{example.key}"
    assert example.says in str(problem)
    with pytest.raises(InputError) as caught:
        read_settings(raw, root, "stacks/x.yaml")
    assert problem in caught.value.problems


@each_example
def test_problem_is_one_sentence_and_a_way_out(name: str, example: Example, root: Path) -> None:
    (problem,) = BY_NAME[name].check(StackSettings.model_validate(changed(example.changes)), root)
    for part in (problem.why, problem.fix):
        assert part.strip() == part != ""
        assert not part.endswith(".")
    assert problem.fix[0].isupper()
    assert "\n" not in str(problem)


@each_rule
def test_rule_is_silent_on_a_good_stack(rule: Rule, good: StackSettings, root: Path) -> None:
    assert list(rule.check(good, root)) == []


def within(path: str, keys: tuple[str, ...]) -> bool:
    return any(f"{path}.".startswith(f"{key}.") for key in keys)


@each_example
def test_example_changes_what_the_rule_reads_and_nothing_else(name: str, example: Example) -> None:
    assert [path for path in example.changes if not within(path, BY_NAME[name].reads)] == []


def looked_at(rule: Rule, changes: Mapping[str, Any], root: Path) -> set[str]:
    """Keys of the settings that the rule looks at, and the objects on the way to them."""
    settings = StackSettings.model_validate(changed(changes))
    paths, seen, plain = {id(settings): ""}, set[str](), object.__getattribute__

    def look(model: Contract, name: str) -> Any:
        value = plain(model, name)
        above = paths.get(id(model))
        if above is not None and name in type(model).model_fields:
            seen.add(f"{above}{name}")
            if isinstance(value, Contract):
                paths[id(value)] = f"{above}{name}."
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contract, "__getattribute__", look, raising=False)
        list(rule.check(settings, root))
    return seen


@each_rule
def test_rule_looks_at_all_that_it_reads_and_at_nothing_else(rule: Rule, root: Path) -> None:
    """One that looked at more would be asked about what could not be read, and mislead."""
    seen = looked_at(rule, {}, root).union(*(looked_at(rule, one.changes, root) for one in EXAMPLES[rule.name]))
    keys = {key for key in seen if not any(other.startswith(f"{key}.") for other in seen)}
    assert {key for key in keys if not within(key, rule.reads)} == set()
    assert {read for read in rule.reads if not any(within(key, (read,)) for key in keys)} == set()


def sentinel(rule: Rule) -> Rule:
    """In the place of a rule: always fires, under its name."""

    def check(settings: StackSettings, root: Path) -> Iterator[Problem]:
        yield Problem(key=rule.name, value=None, why="sentinel", fix="none")

    return Rule(check, rule.reads)


@each_rule
def test_rule_is_asked(rule: Rule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rules, "RULES", tuple(sentinel(one) if one is rule else one for one in RULES))
    with pytest.raises(InputError, match=rule.name):
        read_settings(changed({}), tmp_path, "stacks/x.yaml")


@each_rule
def test_rule_is_not_asked_where_a_key_that_it_reads_is_unread(
    rule: Rule, monkeypatch: pytest.MonkeyPatch, good: StackSettings, tmp_path: Path
) -> None:
    monkeypatch.setattr(rules, "RULES", (sentinel(rule),))
    assert problems_across(good, tmp_path, ["nowhere.near", "job.name"])
    for read in rule.reads:
        for unread in (read, read.partition(".")[0], f"{read}.below"):
            assert problems_across(good, tmp_path, [unread]) == [], unread


def test_a_variable_that_is_nearly_a_roles_is_told_with_that() -> None:
    root = Path(__file__).parents[3]
    settings = StackSettings.model_validate(changed({"node.variables": {"base_nofile": 65536, "base_nofil": 1}}))
    (problem,) = BY_NAME["variables_are_the_roles"].check(settings, root)
    assert (problem.value, problem.fix) == ("base_nofil", "Write base_nofile")
