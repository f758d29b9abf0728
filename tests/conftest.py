"""Shared fixtures: one emulated account, in which each test creates its own resources, and the order of the tests."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from xdist.scheduler import LoadScopeScheduling

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.nspawn.requirements import missing_requirements
from trainyard.aws import clients
from trainyard.aws.s3 import Bucket

REGION = "us-east-1"
_numbers = count(1)


# Slow test files, the slowest first, so that fast files fill the gaps (pytest-xdist keeps this order only with
# --no-loadscope-reorder). The files that use the main rehearsal run in the same worker: its fixture is per process.
MAIN_REHEARSAL_FILES = ("test_side_by_side", "test_stages", "test_audit")
SLOW_FILES = (
    *MAIN_REHEARSAL_FILES,
    *(
        "test_chaos_run",
        "test_booted",
        "test_hostile_job",
        "test_worker_faults",
        "test_worker_environments",
        "test_interrupt",
        "test_whole_node",
        "test_cli_kept",
    ),
    *(
        "test_selftest",
        "test_own_repository",
        "test_all_or_nothing",
        "test_killed",
        "test_worker",
        "test_nvidia_driver",
        "test_health_check",
        "test_examples",
    ),
    *(
        "test_lease",
        "test_startup",
        "test_kept",
        "test_gpu_stack",
        "test_efa",
        "test_container",
        "test_lustre",
        "test_frameworks",
    ),
    *("test_baked_node", "test_layouts", "test_base", "test_run", "test_trainer", "test_broken", "test_cuda"),
    *("test_disk_reserve", "test_pytorch", "test_account_lost", "test_scale_out", "test_hung_job", "test_watchdog"),
)


def find_chromium() -> str | None:
    """Return the path of Chromium; None if it is not installed."""
    paths = (shutil.which(name) for name in ("chromium", "chromium-browser"))
    return next((path for path in paths if path), None)


# Marker -> function that returns why this machine cannot run the tests with this marker; an empty string if it can.
MISSING_REQUIREMENTS: dict[str, Callable[[], str]] = {
    "browser": lambda: "" if find_chromium() else "no chromium (apt-get install chromium)",
    "booted": lambda: "; ".join(f"{problem.reason} ({problem.fix})" for problem in missing_requirements()),
}


def deselect_unsupported(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that this machine cannot run, and print their number. In CI they run and fail."""
    if os.environ.get("CI") == "true":
        return
    for mark, missing in MISSING_REQUIREMENTS.items():
        marked = [item for item in items if item.get_closest_marker(mark)]
        if marked and (reason := missing()):
            items[:] = [item for item in items if item not in marked]
            config.hook.pytest_deselected(items=marked)
            if reporter := config.pluginmanager.get_plugin("terminalreporter"):
                reporter.write_line(f"{len(marked)} tests deselected: {reason}")


@pytest.fixture(scope="session", autouse=True)
def without_ci_variable() -> Iterator[None]:
    """Remove the variable CI, with which a launch would not wait for the start of the job."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        yield


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark booted and browser tests as slow, deselect unsupported tests and sort slow files first."""
    for item in items:
        if any(item.get_closest_marker(mark) for mark in MISSING_REQUIREMENTS):
            item.add_marker(pytest.mark.slow)
    deselect_unsupported(config, items)
    items.sort(key=lambda item: SLOW_FILES.index(item.path.stem) if item.path.stem in SLOW_FILES else len(SLOW_FILES))


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Runs all tests of a file in the same process, in order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "main" if Path(file).stem in MAIN_REHEARSAL_FILES else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Return the scheduler of pytest-xdist."""
    return FileScheduling(config, log)


@pytest.fixture(scope="session")
def running_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """An emulated AWS that all tests of the process share."""
    with EmulatedAws.start(tmp_path_factory.mktemp("account"), region=REGION) as running:
        yield running


@pytest.fixture(scope="module")
def account(running_account: EmulatedAws) -> Iterator[EmulatedAws]:
    """The shared emulated AWS, with the environment variables that clients need."""
    with aws_environment(running_account):
        yield running_account


@pytest.fixture(scope="session")
def node_credentials(running_account: EmulatedAws) -> dict[str, str]:
    """Credentials of a role that may use S3, in the format of the metadata service."""

    def policy(**statement: Any) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]})

    iam = running_account.session().client("iam", endpoint_url=running_account.endpoint)
    trust = policy(Action="sts:AssumeRole", Principal={"Service": "ec2.amazonaws.com"})
    role = iam.create_role(RoleName="node-of-tests", AssumeRolePolicyDocument=trust)["Role"]
    permissions = policy(Action=["s3:GetObject", "s3:PutObject", "s3:ListBucket"], Resource="*")
    iam.put_role_policy(RoleName="node-of-tests", PolicyName="objects", PolicyDocument=permissions)
    sts = running_account.session("ec2").client("sts", endpoint_url=running_account.endpoint)
    keys = sts.assume_role(RoleArn=role["Arn"], RoleSessionName="i-1")["Credentials"]
    names = {"AccessKeyId": "AccessKeyId", "SecretAccessKey": "SecretAccessKey", "SessionToken": "Token"}
    return {**{names[name]: keys[name] for name in names}, "Expiration": "2099-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def own_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """An emulated AWS for one test file: with a hypervisor, which boots untagged instances, or with its own time."""
    with EmulatedAws.start(tmp_path_factory.mktemp("own-account"), region=REGION) as running, aws_environment(running):
        yield running


@contextmanager
def aws_environment(account: EmulatedAws) -> Iterator[None]:
    """Set the environment variables of the account and clear cached clients."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in account.environment().items():
            patch.setenv(name, value)
        patch.setattr(boto3, "DEFAULT_SESSION", None)  # it may have the keys of another account
        clients.client.cache_clear()
        yield
    clients.client.cache_clear()


@pytest.fixture
def bucket(account: EmulatedAws) -> Bucket:
    """An empty bucket."""
    name = f"bucket-{next(_numbers)}"
    boto3.client("s3", region_name=REGION).create_bucket(Bucket=name)
    return Bucket(name, REGION)
