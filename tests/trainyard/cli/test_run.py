"""The command line of `trainyard run`."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from trainyard.cli.app import app
from trainyard.models.run import LaunchResult
from trainyard.operations import job_run


@pytest.fixture
def calls(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The options of each run that the command starts."""
    recorded: list[tuple[Any, Any]] = []

    def run_job(cluster: object, project: object, options: Any, launch_options: Any, display: object) -> LaunchResult:
        recorded.append((options, launch_options))
        return LaunchResult(run="run-1", nodes=("i-1",), data_uri="s3://d/", run_uri="s3://r/", phases={})

    monkeypatch.setattr(job_run, "run_job", run_job)
    monkeypatch.setenv("AWS_REGION", REGION)
    return recorded


def test_arguments_after_the_dashes_are_those_of_the_script(calls: list[tuple[Any, Any]]) -> None:
    stack = clusters.create_cluster(REGION).stack
    result = CliRunner().invoke(app, ["run", "-s", stack, "--job-file", "job.yaml", "--", "--epochs", "9"])
    assert result.exit_code == 0, result.output
    options, launch_options = calls[0]
    assert options.arguments == ("--epochs", "9")
    assert options.file == Path("job.yaml")
    assert launch_options.new_run
    assert "run run-1 is started on 1 node" in result.stdout


def test_record_of_the_run_has_the_deployed_manifest(calls: list[tuple[Any, Any]]) -> None:
    cluster = clusters.create_cluster(REGION)
    assert CliRunner().invoke(app, ["run", "-s", cluster.stack, "--json"]).exit_code == 0
    assert calls[0][1].deployed_digest == cluster.manifest.digest()
