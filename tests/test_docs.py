"""Tests that the docs match the code: generated tables, operator commands, and the table of permissions."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from infra.outputs import commands
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tools.docs.stacks_table import PAGES, TABLES, load_stacks, with_tables
from tools.stack_files import read_stack_file
from trainyard.cli.app import app
from trainyard.config.cost import max_run_usd

ROOT = Path(__file__).parents[1]
DEPLOY = (ROOT / "docs/deploy.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
# Module of pulumi-aws -> IAM service prefix, where they differ. Lookups without a module are in `index`.
SERVICES = {"vpc": "ec2", "cloudcontrol": "cloudformation", "resourcegroupstaggingapi": "tag", "index": "sts"}


@pytest.mark.parametrize("name", PAGES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    page = (ROOT / name).read_text()
    assert with_tables(page, load_stacks(ROOT)) == page, "python -m tools.docs.stacks_table"


def test_every_generated_table_is_used() -> None:
    text = "".join((ROOT / name).read_text() for name in PAGES)
    assert set(re.findall(r"<!-- generated: (\w+) -->", text)) == set(TABLES)


def test_exported_commands_are_valid_and_documented() -> None:
    program: Any = get_command(app)
    for name, command in commands("local", "us-east-1").items():
        assert f"| `{name}` |" in OPERATIONS
        arguments = shlex.split(command)
        if "trainyard" in arguments:
            verb, *options = arguments[arguments.index("trainyard") + 1 :]
            program.commands[verb].make_context(verb, options)  # raises for an unknown option


class RecordingAccount(StaticAccount):
    """Records the modules of the invoked lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: set[str] = set()

    def invoke(self, token: str, arguments: Any) -> dict[str, Any]:
        self.modules.add(_module(token))
        return super().invoke(token, arguments)


def modules(stack: str) -> frozenset[str]:
    """Return the modules of pulumi-aws that a stack's resources and lookups use."""
    account = RecordingAccount()
    deployment = up(read_stack_file(stack), stack, ROOT, preview=True, account=account)
    types = [resource.type for resource in deployment.resources.values() if resource.type.startswith("aws:")]
    return frozenset({*account.modules, *map(_module, types)})


def _module(token: str) -> str:
    return token.split(":")[1].partition("/")[0]


@pytest.mark.parametrize("stack", ["a100-cluster", "h200-cluster"])
def test_permissions_table_has_every_service(stack: str) -> None:
    documented = set(
        re.findall(r"^\| `(\w+)` \|", DEPLOY[DEPLOY.index("### IAM permissions") : DEPLOY.index("### Quotas")], re.M)
    )
    assert {SERVICES.get(module, module) for module in modules(stack)} <= documented


THREAT_MODEL = (ROOT / "docs/threat-model.md").read_text()
PROMISES = [
    line for line in THREAT_MODEL.splitlines() if line.startswith("|") and "`test_" in line.rpartition(" | ")[2]
]


@pytest.fixture(scope="module")
def test_code() -> str:
    return "".join(f"{path.name}\n{path.read_text()}" for path in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_tests_of_the_threat_model_exist(row: str, test_code: str) -> None:
    for name, case in re.findall(r"`(test_\w+(?:\.py)?)(?:\[(.+?)\])?`", row.rpartition(" | ")[2]):
        assert name in test_code if name.endswith(".py") else f"def {name}(" in test_code
        assert not case or f'"{case}"' in test_code


def test_every_attack_of_the_threat_model_has_a_test() -> None:
    table = THREAT_MODEL[THREAT_MODEL.index("## Attacks") : THREAT_MODEL.index("## Not promised")]
    assert len(PROMISES) == len([line for line in table.splitlines() if line.startswith("| ")]) - 2


README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", [README, DEPLOY], ids=["README", "deploy"])
def test_first_deployed_stack_is_the_cheapest(page: str) -> None:
    (first, *_) = re.findall(r"^pulumi stack init (\S+)$", page, re.M)
    costs = {stack: max_run_usd(settings) for stack, settings in load_stacks(ROOT).items()}
    assert costs[first] == min(costs.values())


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_commands_assume_the_activated_environment(path: Path) -> None:
    assert ".venv/bin/trainyard" not in path.read_text()
