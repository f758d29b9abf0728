"""Loading settings: all problems of types and keys in one error, then all problems of the validators."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainyard.config.stacks import changed
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.errors import InputError, Problem

PUBLIC = {"network.cidr": "8.8.0.0/16"}


def problems(raw: Any, root: Path) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load_settings(raw, root, "stacks/x.yaml")
    return caught.value.problems


def problem_keys(raw: Any, root: Path) -> list[str]:
    return sorted(problem.key.removeprefix(f"{CONFIG_KEY}.") for problem in problems(raw, root))


def test_missing_settings_are_refused(tmp_path: Path) -> None:
    (problem,) = problems(None, tmp_path)
    assert (problem.key, problem.code) == (CONFIG_KEY, "missing")


def test_settings_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    (problem,) = problems(["c7i.xlarge"], tmp_path)
    assert (problem.key, problem.value, problem.code) == (CONFIG_KEY, ["c7i.xlarge"], "mapping_type")


def test_all_type_problems_are_reported_together(tmp_path: Path) -> None:
    raw = changed({"nodes": 0, "root_volume_gib": 1, "extra": 1})
    assert problem_keys(raw, tmp_path) == ["extra", "nodes", "root_volume_gib"]


def test_all_validator_problems_are_reported_together(tmp_path: Path) -> None:
    raw = changed({**PUBLIC, "network.efa": True, "tags": {"Name": "x"}})
    assert problem_keys(raw, tmp_path) == ["network.cidr", "network.efa", "tags.Name"]


def test_validators_do_not_run_on_invalid_types(tmp_path: Path) -> None:
    assert problem_keys(changed({**PUBLIC, "nodes": 0}), tmp_path) == ["nodes"]


def test_validator_problem_has_the_validator_as_code(tmp_path: Path) -> None:
    assert [problem.code for problem in problems(changed(PUBLIC), tmp_path)] == ["cidr_is_private"]


def test_empty_stack_reports_the_required_keys(tmp_path: Path) -> None:
    assert problem_keys({}, tmp_path) == ["instance_type", "job", "nodes"]


def test_encrypted_settings_are_refused_by_their_keys(tmp_path: Path) -> None:
    secret = {"secure": "v1:zvnUmg==:aaaa"}
    raw = changed({"job.environment": {"TOKEN": secret}, "availability_zone": secret})
    assert problem_keys(raw, tmp_path) == ["availability_zone", "job.environment.TOKEN"]
    assert "job.secrets" in str(problems(raw, tmp_path)[0])
