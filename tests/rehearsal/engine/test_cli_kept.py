"""README's commands on a change, in a kept rehearsal with the real Pulumi CLI. Skipped when the CLI is not on PATH."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from tests.rehearsal.conftest import ROOT, stack_file
from tests.rehearsal.engine.test_cli import requires_cli
from tests.rehearsal.kept.kept_process import KeptRehearsalProcess
from tests.rehearsal.running import assert_no_leftovers, rehearsal_starter

pytestmark = [requires_cli, pytest.mark.slow]
STACK = "kept-cli"
SECTION = "## Change something and run again"
JOB = "import sys\nprint('argument', sys.argv[1:])\n"
EDIT = "# change a setting"


class KeptCliRehearsal(KeptRehearsalProcess):
    options: ClassVar[tuple[str, ...]] = ("--keep", "--engine", "pulumi")


@pytest.fixture
def keep(tree_without_checks: Path) -> Iterator[Callable[..., KeptCliRehearsal]]:
    with rehearsal_starter(tree_without_checks, KeptCliRehearsal) as start:
        yield start


def readme_commands() -> list[str]:
    """Return the lines of the commands in README, for the stack of this file."""
    section = (ROOT / "README.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.replace(" local", f" {STACK}").replace("/local/", f"/{STACK}/") for line in block.splitlines()]


def change_argument(tree: Path) -> None:
    file = stack_file(tree, STACK)
    content = yaml.safe_load(file.read_text())
    content["config"]["trainyard:cluster"]["job"]["command"] = ["train.py", "changed"]
    file.write_text(yaml.safe_dump(content))


def test_commands_of_the_readme_change_and_end_a_kept_rehearsal(keep: Callable[..., KeptCliRehearsal]) -> None:
    activate, start, source, edit, *commands = readme_commands()
    assert activate.split(" #")[0].strip() == "source .venv/bin/activate"
    kept = keep(STACK, "arguments", script=JOB)
    assert start == f"trainyard rehearse --keep -s {STACK} --engine pulumi"
    assert source.split(" #")[0].strip() == f"source build/rehearsal/{STACK}/environment"
    assert edit.startswith(EDIT)
    kept.wait_until_kept()
    first_run = run_id(kept)
    change_argument(kept.tree)
    completed: dict[str, subprocess.CompletedProcess[str]] = {}
    for command in commands:
        verb = " ".join(command.split(" #")[0].split())
        if verb.startswith("trainyard destroy"):
            last_run = run_id(kept)
        completed[verb] = kept.in_shell(command)
        assert completed[verb].returncode == 0, (verb, completed[verb].stderr, completed[verb].stdout)
    assert last_run != first_run
    preview = completed[f"trainyard up -s {STACK} --preview"].stderr
    assert "1 to create" not in preview
    assert "to replace" not in preview
    assert re.search(r"~ \d to update", preview)
    assert "argument ['changed']" in completed[f"trainyard logs -s {STACK} --follow"].stdout
    assert f"stack {STACK} is destroyed" in completed[f"trainyard destroy -s {STACK} --yes"].stdout
    report = json.loads((kept.folder / "report.json").read_text())
    assert (report["ok"], report["leaked"]) == (True, [])
    assert_no_leftovers(kept)


def run_id(kept: KeptCliRehearsal) -> str:
    status = json.loads(kept.in_shell(f"trainyard status -s {STACK} --json").stdout)
    return str(status["record"]["run"])
