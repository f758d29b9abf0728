"""The program's graph on a static account: whole, with known values, in a fraction of a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount

ROOT = Path(__file__).parents[2]
STACKS = ("local", "a100-cluster")


def stack_config(stack: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    return loaded


@pytest.fixture(scope="session")
def local() -> Deployment:
    return up(ROOT / "stacks/Pulumi.local.yaml", "local", ROOT, account=StaticAccount())


@pytest.fixture(scope="session")
def gpu() -> Deployment:
    return up(ROOT / "stacks/Pulumi.a100-cluster.yaml", "a100-cluster", ROOT, account=StaticAccount())


@pytest.fixture(params=STACKS)
def either(request: pytest.FixtureRequest) -> Deployment:
    found: Deployment = request.getfixturevalue({"local": "local", "a100-cluster": "gpu"}[request.param])
    return found


@pytest.fixture
def changed() -> Callable[..., Deployment]:
    """Run the stack `local` with some keys of its cluster changed."""

    def run(retained: str | None = None, **changes: Any) -> Deployment:
        config = stack_config("local")
        config["trainyard:cluster"] |= changes
        return up(config, "local", ROOT, account=StaticAccount(retained=retained))

    return run
