"""The pages say what is so: their tables, the operator's commands, the services that the program needs rights of."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from infra.outputs import commands
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount
from tools.docs.stacks_table import PAGES, TABLES, filled, shipped
from trainyard.__main__ import app

ROOT = Path(__file__).parents[1]
DEPLOY = (ROOT / "docs/deploy.md").read_text()
# Names of pulumi-aws's modules where IAM calls the service otherwise; the SDK's own look-ups have none.
SERVICES = {"vpc": "ec2", "cloudcontrol": "cloudformation", "resourcegroupstaggingapi": "tag", "index": "sts"}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_fresh(name: str) -> None:
    page = (ROOT / name).read_text()
    assert filled(page, shipped(ROOT)) == page, "python -m tools.docs.stacks_table"


def test_every_table_stands_in_a_page() -> None:
    text = "".join((ROOT / name).read_text() for name in PAGES)
    assert set(re.findall(r"<!-- made: (\w+) -->", text)) == set(TABLES)


def test_every_command_that_the_program_tells_is_one_and_explained() -> None:
    program: Any = get_command(app)
    for name, command in commands("local", "us-east-1").items():
        assert f"| `{name}` |" in DEPLOY
        words = shlex.split(command)
        if "trainyard" in words:
            verb, *options = words[words.index("trainyard") + 1 :]
            program.commands[verb].make_context(verb, options)  # raises for an option that is not there


class Heard(StaticAccount):
    """Remembers the modules whose look-ups were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: set[str] = set()

    def look_up(self, token: str, given: Any) -> dict[str, Any]:
        self.modules.add(_module(token))
        return super().look_up(token, given)


def modules(stack: str) -> frozenset[str]:
    """Modules of pulumi-aws that a stack's resources and look-ups are from."""
    account = Heard()
    run = up(ROOT / f"stacks/Pulumi.{stack}.yaml", stack, ROOT, preview=True, account=account)
    types = [resource.type for resource in run.resources.values() if resource.type.startswith("aws:")]
    return frozenset({*account.modules, *map(_module, types)})


def _module(token: str) -> str:
    return token.split(":")[1].partition("/")[0]


@pytest.mark.parametrize("stack", ["a100-cluster", "h200-cluster"])
def test_every_service_stands_among_the_rights(stack: str) -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", DEPLOY[DEPLOY.index("### Rights") : DEPLOY.index("### Quotas")], re.M))
    assert {SERVICES.get(module, module) for module in modules(stack)} <= named
