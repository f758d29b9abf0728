"""Commands on a kept rehearsal: only AWS_ENDPOINT_URL selects it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import ROOT
from trainyard.config.project import Project, read_project
from trainyard.errors import InputError
from trainyard.models.kept_rehearsal import DESCRIPTION, KeptRehearsal
from trainyard.operations import stack_project
from trainyard.operations.kept_rehearsal import current_kept_rehearsal, write_stack_settings


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The URL of a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return read_project(tmp_path)


def write_description(project: Project, endpoint: str, pulumi_folder: str | None = None) -> KeptRehearsal:
    folder = project.rehearsal("a")
    folder.mkdir(parents=True)
    kept = KeptRehearsal(
        stack="a",
        process=1,
        endpoint=endpoint,
        engine="pulumi" if pulumi_folder else "mocks",
        backend="process",
        environment="file",
        ends_at=0.0,
        arguments=(),
        pulumi_folder=pulumi_folder,
        pulumi_environment={"PULUMI_BACKEND_URL": "file:///state"} if pulumi_folder else {},
    )
    (folder / DESCRIPTION).write_text(kept.model_dump_json())
    return kept


def test_commands_use_aws_without_the_variable(project: Project, endpoint: str) -> None:
    write_description(project, endpoint)
    assert current_kept_rehearsal("a", project) is None


def test_variable_selects_the_kept_rehearsal(project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write_description(project, endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert current_kept_rehearsal("a", project) == kept


def test_other_stack_is_refused_in_the_shell_of_a_kept_rehearsal(
    project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_description(project, endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError) as error:
        current_kept_rehearsal("b", project)
    assert error.value.problems[0].code == "kept_for_another_stack"


def test_variable_of_another_account_does_not_select_it(
    project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_description(project, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert current_kept_rehearsal("a", project) is None


def test_account_that_has_ended_is_refused(project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_description(project, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError) as error:
        current_kept_rehearsal("a", project)
    assert error.value.problems[0].code == "endpoint_unreachable"


def test_rehearsal_kept_without_the_cli_is_refused(
    project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_description(project, endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match="trainyard rehearse --down -s a") as error:
        stack_project.stack_project("a", project, None)
    assert error.value.problems[0].code == "kept_without_engine"
    assert "\n" not in str(error.value)


def test_project_of_a_kept_rehearsal_is_its_own(
    project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_description(project, endpoint, "/kept/pulumi")
    monkeypatch.setattr(stack_project, "require_pulumi", lambda: "pulumi")
    assert stack_project.stack_project("a", project, None).folder == project.folder
    assert stack_project.stack_project("a", project, Path("/x")).folder == Path("/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    selected = stack_project.stack_project("a", project, None)
    assert (selected.folder, dict(selected.variables)) == (
        Path("/kept/pulumi"),
        {"PULUMI_BACKEND_URL": "file:///state"},
    )


def test_error_of_a_job_file_names_the_file(project: Project, endpoint: str, tmp_path: Path) -> None:
    kept = write_description(project, endpoint)
    (project.stacks / "Pulumi.a.yaml").write_text((ROOT / "stacks/Pulumi.local.yaml").read_text())
    (project.folder / "Pulumi.yaml").write_text("name: trainyard")
    (project.folder / "__main__.py").touch()
    kept = kept.model_copy(update={"arguments": ("--stack", "a", "--project", str(project.folder))})
    with pytest.raises(InputError) as error:
        write_stack_settings(kept, project, {"job.time_limit_minutes": -1}, tmp_path / "job.yaml")
    (problem,) = error.value.problems
    assert (problem.key, "in job.yaml" in problem.reason) == ("job.yaml", True)
