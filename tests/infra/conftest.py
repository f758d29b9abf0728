"""Graphs of the program on a static account."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tools.stack_files import read_stack_file

ROOT = Path(__file__).parents[2]
STACKS = tuple(sorted(path.name.split(".")[1] for path in (ROOT / "stacks").glob("Pulumi.*.yaml")))
GROUP, TEMPLATE = "aws:autoscaling/group:Group", "aws:ec2/launchTemplate:LaunchTemplate"


# The registry of the AWS Deep Learning Containers.
ECR_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9"


def with_container(image: str) -> dict[str, Any]:
    """A custom job in a container."""
    job = {"name": "a", "source": "examples/custom-job", "command": ["train.py"]}
    return {**job, "container": image}


@cache
def deployed(stack: str) -> Deployment:
    """The deployed graph of a stack file."""
    return up(read_stack_file(stack), stack, ROOT, account=StaticAccount())


def head_template_of(run: Deployment) -> Resource:
    """The launch template of the head."""
    (head,) = [each for each in run.resources_of_type(TEMPLATE) if each.name.startswith("head-")]
    return head


def templates_of(run: Deployment) -> list[Resource]:
    """The launch templates of the worker groups."""
    return [each for each in run.resources_of_type(TEMPLATE) if not each.name.startswith("head-")]


@pytest.fixture
def local() -> Deployment:
    return deployed("local")


@pytest.fixture
def gpu() -> Deployment:
    return deployed("a100-cluster")


@pytest.fixture(params=STACKS)
def shipped(request: pytest.FixtureRequest) -> Deployment:
    """The graph of each stack in stacks/."""
    return deployed(request.param)


@pytest.fixture
def changed() -> Callable[..., Deployment]:
    """Deploy a stack with changed settings. `account`: arguments of StaticAccount. `deployed`: earlier place."""

    def run(
        stack: str = "local",
        account: dict[str, Any] | None = None,
        deployed: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Deployment:
        config = copy.deepcopy(read_stack_file(stack))
        config["trainyard:cluster"] |= changes
        earlier = {"trainyard:infra:StackKey": deployed} if deployed else None
        return up(config, stack, ROOT, account=StaticAccount(**(account or {})), earlier_outputs=earlier)

    return run
