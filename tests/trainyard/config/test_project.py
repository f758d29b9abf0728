"""Which project a command uses: the nearest with stack files, else this repository."""

import shutil
from pathlib import Path

import pytest

from tests.problems import rejects
from trainyard.config import project as module
from trainyard.config.project import PROJECT_ROOT, find_project, read_project


def write(root: Path, *names: str, text: str = "") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_this_repository_has_its_stack_files_and_program_in_folders() -> None:
    project = find_project(PROJECT_ROOT / "examples/custom-job")
    assert (project.folder, project.program) == (PROJECT_ROOT, PROJECT_ROOT / "infra")
    assert project.source("local") == "stacks/Pulumi.local.yaml"
    assert project.find_stack_file("local") == PROJECT_ROOT / "stacks/Pulumi.local.yaml"


@pytest.mark.parametrize("start", [".", "src/deep", "trainyard"])
@pytest.mark.parametrize("file", ["Pulumi.dev.yaml", "Pulumi.yaml"])
def test_folder_trainyard_is_used_in_folders_below_its_parent(start: str, file: str, tmp_path: Path) -> None:
    write(tmp_path, f"trainyard/{file}", text="name: trainyard")
    (tmp_path / start).mkdir(parents=True, exist_ok=True)
    project = find_project(tmp_path / start)
    assert (project.folder, project.stacks) == (tmp_path / "trainyard", tmp_path / "trainyard")
    assert project.source("dev") == "trainyard/Pulumi.dev.yaml"


def test_folder_with_the_project_file_may_have_another_name(tmp_path: Path) -> None:
    write(tmp_path, "deploy/Pulumi.yaml", text="{name: trainyard, stackConfigDir: stacks, main: program}")
    project = find_project(tmp_path / "deploy")
    assert (project.stacks, project.program) == (tmp_path / "deploy/stacks", tmp_path / "deploy/program")


def test_stack_files_identify_a_project_of_any_name(tmp_path: Path) -> None:
    write(tmp_path, "Pulumi.yaml", text="{name: llm, stackConfigDir: stacks}")
    write(tmp_path, "stacks/Pulumi.dev.yaml", text="config: {trainyard:cluster: {}}")
    project = find_project(tmp_path / "stacks")
    assert (project.folder, project.name) == (tmp_path, "llm")


def test_project_of_another_program_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, "trainyard/Pulumi.dev.yaml")
    write(tmp_path, "infra/Pulumi.yaml", text="name: website")
    assert find_project(tmp_path / "infra").folder == tmp_path / "trainyard"


def test_clone_of_trainyard_in_a_folder_above_is_not_the_project(tmp_path: Path) -> None:
    write(tmp_path, "trainyard/Pulumi.yaml", text="name: trainyard")
    write(tmp_path, "trainyard/.git/HEAD", text="ref: refs/heads/main")
    (tmp_path / "mine").mkdir()
    assert find_project(tmp_path / "mine").folder == PROJECT_ROOT


def test_folder_without_stack_files_uses_this_repository(tmp_path: Path) -> None:
    assert find_project(tmp_path).folder == PROJECT_ROOT


def test_installed_package_has_no_stack_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROJECT_ROOT", tmp_path / "site-packages")
    project = find_project(tmp_path)
    assert (project.folder, project.stack_names) == (tmp_path, [])
    with rejects("unknown_stack", "Create it with trainyard init dev, or name the folder of the project with -C"):
        project.find_stack_file("dev")


def test_unreadable_project_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "Pulumi.yaml", text="name: [")
    with rejects("project_unreadable", str(tmp_path / "Pulumi.yaml")):
        find_project(tmp_path)


def test_stack_files_without_a_program_can_be_read_but_not_run(tmp_path: Path) -> None:
    write(tmp_path, "trainyard/Pulumi.dev.yaml")
    project = find_project(tmp_path)
    assert project.stack_names == ["dev"]
    with rejects("program_missing", "trainyard init"):
        project.require_program()


def test_project_file_may_name_the_program_itself(tmp_path: Path) -> None:
    write(tmp_path, "Pulumi.yaml", text="{name: trainyard, main: program/run.py}")
    write(tmp_path, "program/run.py")
    assert read_project(tmp_path).program == tmp_path / "program"
    shutil.rmtree(tmp_path / "program")
