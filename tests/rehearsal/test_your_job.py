"""The commands of docs/your-job.md, one after the other, in a folder outside the checkout."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.conftest import ROOT, clean_environment

pytestmark = pytest.mark.slow
COMMAND_TIMEOUT_SECONDS = 600


def commands() -> list[str]:
    """Return the commands of the page."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/your-job.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a shell with `trainyard` of this checkout on PATH."""
    variables = {"TRAINYARD": str(ROOT), "PYTHONPATH": str(ROOT), "GIT_CEILING_DIRECTORIES": "/"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return clean_environment() | variables | {"PATH": path}


@pytest.fixture
def folder(tmp_path: Path, environment: dict[str, str]) -> Iterator[Path]:
    """A folder in which the commands run. A rehearsal that a failed command leaves is ended."""
    yield tmp_path
    project = tmp_path / "my-project"
    if (project / "trainyard/build/rehearsal/dev/environment").exists():
        command = ["trainyard", "-C", str(project), "rehearse", "--down", "-s", "dev"]
        subprocess.run(command, env=environment, timeout=COMMAND_TIMEOUT_SECONDS, check=False)


def test_commands_of_the_page_work(folder: Path, environment: dict[str, str]) -> None:
    script = "set -e\n" + "".join(f"echo '+ command {number}'\n{line}\n" for number, line in enumerate(commands()))
    process = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert re.search(r"20 steps, loss \d", process.stdout)
    assert re.search(r"10 steps, loss \d", process.stdout)
    assert (folder / "my-project/results/results.json").is_file()
