"""Bad settings end with one clear message each, good ones say what they imply."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from contract import rules
from contract.base import InputError, Problem
from contract.reading import read_settings
from contract.reference import models_in
from contract.rules import RULES
from contract.rules.rule import Rule
from contract.settings import StackSettings
from contract.wording import WORDINGS

GOOD: dict[str, Any] = {
    "instance_type": "c7i.xlarge",
    "nodes": 2,
    "job": {"name": "line", "dataset": "d", "processes_per_node": 2, "train": {}},
}

# What is changed (path, value), and what the message must name.
BAD: list[tuple[str, Any, str]] = [
    ("instance_typ", "c7i.xlarge", "trainyard:cluster.instance_typ = 'c7i.xlarge': no such key"),
    ("instance_type", "p9.huge", "instance_type = 'p9.huge': not in the hardware catalog"),
    ("head_instance_type", "t9.nano", "head_instance_type = 't9.nano': not in the hardware catalog"),
    ("nodes", 0, "nodes = 0: must be greater than 0"),
    ("nodes", "two", "nodes = 'two': not a whole number"),
    ("nodes", 4096, "nodes = 4096"),
    ("job", None, "job = None"),
    ("job.name", "Two Words", "job.name = 'Two Words'"),
    ("job.train", {"steps": -1}, "job.train.steps = -1"),
    ("job.train", {"stepz": 1}, "job.train.stepz = 1: no such key"),
    ("job.train", {"model": {"heads": 3}}, "job.train.model"),
    ("job.train", {"optimizer": {"learning_rate": 1e-5}}, "min_learning_rate 0.0003 is above learning_rate"),
    ("job.train", {"batch_size": 30}, "batch_size 30 is not a multiple of micro_batch_size 4 x 4 processes"),
    ("job.train", {"precision": "int8"}, "job.train.precision = 'int8'"),
    ("job.train", None, "says neither what the built-in trainer shall train nor what else to run"),
    ("job.source", "nowhere", "job.source"),
    ("job.source", "/etc", "must be a path below the folder of Pulumi.yaml"),
    ("job.source", "../other", "must be a path below the folder of Pulumi.yaml"),
    ("job.command", ["train.py"], "a job is the built-in trainer's or the user's own"),
    ("network", {"efa": True}, "network.efa = True: c7i.xlarge bears no Elastic Fabric Adapter"),
    ("network", {"cidr": "10.0.0.0/28"}, "network.cidr = '10.0.0.0/28'"),
    ("network", {"cidr": "10.0.0.0/8"}, "network.cidr = '10.0.0.0/8'"),
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
    (
        "job.environment",
        {"WORLD_SIZE": "7"},
        "job.environment.WORLD_SIZE = '7': torchrun, AWS's SDKs or the node's agent",
    ),
    ("job.secrets", {"AWS_SECRET_ACCESS_KEY": "k"}, "job.secrets.AWS_SECRET_ACCESS_KEY = 'k': torchrun, AWS's SDKs"),
    ("job.secrets", {"KEY": "a b"}, "job.secrets.KEY = 'a b': must be the name of an SSM parameter"),
    ("job.environment", {"1ST": "x"}, "job.environment.1ST = '1ST': must be the name of an environment variable"),
    (
        "job.time_limit_minutes",
        45,
        "job.time_limit_minutes = 45.0: the workers end then, and bringing",
    ),
]


def changed(path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    *above, last = path.split(".")
    part = raw
    for name in above:
        part = part[name]
    part[last] = value
    return raw


@pytest.mark.parametrize(("path", "value", "message"), BAD, ids=[f"{path}={value}" for path, value, _ in BAD])
def test_bad_input_is_named(path: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(changed(path, value), tmp_path, "stacks/x.yaml")
    assert message in str(caught.value)


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    raw = {**GOOD, "nodes": 0, "root_volume_gib": 1, "extra": 1}
    with pytest.raises(InputError) as caught:
        read_settings(raw, tmp_path, "stacks/x.yaml")
    assert {problem.key.rsplit(".", 1)[-1] for problem in caught.value.problems} == {
        "nodes",
        "root_volume_gib",
        "extra",
    }


def test_no_settings_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no such object"):
        read_settings(None, tmp_path, "stacks/x.yaml")


def test_a_cidr_too_small_for_the_nodes_is_told(tmp_path: Path) -> None:
    raw = {**GOOD, "nodes": 200, "network": {"cidr": "10.0.0.0/24"}, "job": {"name": "a", "dataset": "d", "train": {}}}
    raw["job"]["train"] = {"batch_size": 800}
    with pytest.raises(InputError, match=r"too small: its private half has 123 free addresses, the cluster needs 217"):
        read_settings(raw, tmp_path, "stacks/x.yaml")


def test_the_script_must_be_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    raw = {**GOOD, "job": {"name": "a", "dataset": "d", "source": "mine", "command": ["absent.py"]}}
    with pytest.raises(InputError, match=r"job.command = 'absent.py': no such file in mine"):
        read_settings(raw, tmp_path, "stacks/x.yaml")


def test_more_processes_than_gpus_are_told(tmp_path: Path) -> None:
    raw = {**GOOD, "instance_type": "p4d.24xlarge", "job": {**GOOD["job"], "processes_per_node": 9}}
    with pytest.raises(InputError, match=r"p4d\.24xlarge has 8 GPUs"):
        read_settings(raw, tmp_path, "stacks/x.yaml")


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


def test_a_variable_has_one_value(tmp_path: Path) -> None:
    job = {**GOOD["job"], "secrets": {"TOKEN": "/token"}, "environment": {"TOKEN": "x"}}
    with pytest.raises(InputError, match=r"job\.secrets\.TOKEN = '/token': stands in job\.environment too"):
        read_settings({**GOOD, "job": job}, tmp_path, "stacks/x.yaml")


def test_a_source_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    raw = {**GOOD, "job": {"name": "a", "dataset": "d", "source": "train.py", "command": ["train.py"]}}
    with pytest.raises(InputError, match=r"job\.source = 'train\.py': is a file, not a folder"):
        read_settings(raw, tmp_path, "stacks/x.yaml")


def keys_of(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        for below in models_in(field.annotation):
            yield from keys_of(below, (*above, name))


@pytest.mark.parametrize("junk", [None, "x y", "", 0, -1, 2.5, float("nan"), 1e99, [], [[]], {}, {"a b": [1]}, True])
def test_whatever_stands_in_a_key_is_refused_in_our_words(junk: Any, tmp_path: Path) -> None:
    for path in keys_of(StackSettings):
        raw = copy.deepcopy(GOOD)
        part = raw
        for name in path[:-1]:
            part = part.setdefault(name, {})
        part[path[-1]] = junk
        try:
            StackSettings.model_validate(raw)
        except ValidationError as error:
            for item in error.errors():
                assert item["type"] in {*WORDINGS, "value_error"}, f"{'.'.join(path)}: {item['msg']}"


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_every_rule_is_asked(rule: Rule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sentinel(settings: StackSettings, root: Path) -> Iterator[Problem]:
        yield Problem(key=rule.name, value=None, why="sentinel", fix="none")

    asked = tuple(Rule(sentinel, one.reads) if one is rule else one for one in RULES)
    monkeypatch.setattr(rules, "RULES", asked)
    with pytest.raises(InputError, match=rule.name):
        read_settings(GOOD, tmp_path, "stacks/x.yaml")
