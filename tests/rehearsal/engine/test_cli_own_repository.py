"""The real Pulumi CLI in a repository of the user, with the files that `trainyard init` writes there."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.adapter.provider import Provider, serve_provider
from rehearsal.aws.process import EmulatedAws
from tests.conftest import aws_environment
from tests.rehearsal.adapter.conftest import LAUNCHER
from tests.rehearsal.engine.test_cli import requires_cli
from trainyard.operations.init_project import InitOptions, init_project

pytestmark = [
    requires_cli,
    pytest.mark.skipif(not shutil.which("pulumi-resource-command"), reason="Pulumi's command plugin is not on PATH"),
]
STACK = "own"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a job, and a script in place of the launcher."""
    folder = tmp_path / "my repository \u00fc"
    folder.mkdir()
    (folder / "train.py").touch()
    options = InitOptions(
        instance_type="c7i.xlarge", nodes=2, region="us-east-1", source=folder, command="train.py --epochs 3"
    )
    init_project(STACK, folder, options)
    (folder / "trainyard/launcher").write_text(LAUNCHER.replace("../calls", "../../calls"))  # outside of the job
    return folder


@pytest.fixture
def environment(tmp_path: Path, repository: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell with an activated virtual environment, for an emulated account."""
    with (
        EmulatedAws.start(tmp_path / "aws") as aws,
        aws_environment(aws),
        serve_provider(Provider(repository / "trainyard", aws.region)) as port,
    ):
        (tmp_path / "state").mkdir()
        yield {
            **os.environ,
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": sys.prefix,
            "PULUMI_BACKEND_URL": (tmp_path / "state").as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DEBUG_PROVIDERS": f"aws:{port}",
        }


def test_up_runs_the_launcher_of_the_repository_without_absolute_paths(
    repository: Path, environment: dict[str, str]
) -> None:
    def pulumi(*arguments: str) -> str:
        command = ["pulumi", *arguments, "-C", "trainyard", "--non-interactive"]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pulumi("stack", "init", STACK)
    pulumi("up", "-s", STACK, "--yes", "--skip-preview")
    (call,) = (repository.parent / "calls").read_text().splitlines()
    assert call.startswith(f"launch --stack {STACK} --manifest s3://")
    pulumi("preview", "-s", STACK, "--expect-no-changes")
    resources = json.loads(pulumi("stack", "export", "-s", STACK))["deployment"]["resources"]
    (inputs,) = (each["inputs"] for each in resources if each["type"] == "command:local:Command")
    assert str(repository.parent) not in json.dumps(inputs, ensure_ascii=False)
    pulumi("destroy", "-s", STACK, "--yes", "--skip-preview")
