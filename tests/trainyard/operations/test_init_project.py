"""`trainyard init`: the files that it writes are valid, and existing files are kept."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.problems import rejects
from trainyard.config import CONFIG_KEY
from trainyard.config.catalog import catalog
from trainyard.config.loader import load_settings
from trainyard.config.project import PROJECT_ROOT, find_project
from trainyard.config.settings import StackSettings
from trainyard.operations.init_project import InitOptions, init_project


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a script, and with folders that have the names of Trainyard's packages."""
    folder = tmp_path / "my repository \u00fc"
    for name in ("src/train.py", "infra/__init__.py", "trainer/__init__.py"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    return folder


def options(folder: Path, **changes: Any) -> InitOptions:
    values = {"instance_type": "c7i.xlarge", "nodes": 2, "region": "eu-west-1", "source": folder}
    return InitOptions(**{**values, **changes})


def settings(folder: Path, stack: str) -> StackSettings:
    project = find_project(folder)
    raw = yaml.safe_load(project.find_stack_file(stack).read_text())["config"]
    assert raw["aws:region"] == "eu-west-1"
    return load_settings(raw[CONFIG_KEY], project.folder, stack)


@pytest.mark.parametrize(
    "name",
    [each.name for each in catalog().instance_types if each.on_demand_usd and not each.unsupported_by_cuda()],
)
def test_stack_file_is_valid_for_each_instance_type(name: str, repository: Path) -> None:
    init_project("dev", repository, options(repository, instance_type=name, nodes=1))
    assert settings(repository, "dev").instance_type == name


def test_custom_job_is_relative_to_the_project(repository: Path) -> None:
    job = options(repository, source=repository / "src", command="train.py --name 'two words'")
    init_project("dev", repository, job)
    written = settings(repository, "dev").job
    assert (written.source, written.command) == ("../src", ("train.py", "--name", "two words"))


def test_written_files_contain_no_absolute_path(repository: Path) -> None:
    init_project("dev", repository, options(repository, source=repository / "src", command="train.py"))
    files = [path for path in (repository / "trainyard").iterdir() if path.is_file()]
    assert {path.name for path in files} == {"Pulumi.dev.yaml", "Pulumi.yaml", "__main__.py", "launcher", ".gitignore"}
    for file in files:
        assert str(repository.parent) not in file.read_text()
        assert str(PROJECT_ROOT) not in file.read_text()


@pytest.mark.parametrize(("folder", "name"), [("my model (v2)", "my-model-v2"), ("模型", "trainyard")])
def test_project_has_the_name_of_the_repository(folder: str, name: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    init_project("dev", tmp_path / folder, options(tmp_path / folder))
    assert find_project(tmp_path / folder).name == name


def test_second_stack_is_added_to_the_project_from_a_folder_below(repository: Path) -> None:
    init_project("dev", repository, options(repository))
    (repository / "trainyard/.gitignore").write_text("/mine/\n")
    result = init_project("prod", repository / "src", options(repository, nodes=4))
    assert result.files == ("../trainyard/Pulumi.prod.yaml",)
    assert (repository / "trainyard/.gitignore").read_text() == "/mine/\n"
    assert "trainyard up -s prod" in result.commands


def test_existing_stack_file_is_kept(repository: Path) -> None:
    init_project("dev", repository, options(repository))
    before = (repository / "trainyard/Pulumi.dev.yaml").read_text()
    with rejects("stack_file_exists", "NAME = 'dev': trainyard/Pulumi.dev.yaml exists"):
        init_project("dev", repository, options(repository, nodes=3))
    assert (repository / "trainyard/Pulumi.dev.yaml").read_text() == before


@pytest.mark.parametrize("changes", [{"nodes": 0}, {"instance_type": "c7i.xlrge"}, {"command": "absent.py"}])
def test_invalid_option_writes_nothing(changes: dict[str, Any], repository: Path) -> None:
    with pytest.raises(ValueError, match=r"trainyard/Pulumi\.dev\.yaml|relative to it"):
        init_project("dev", repository, options(repository, **changes))
    assert not (repository / "trainyard").exists()


def test_invalid_name_writes_nothing(repository: Path) -> None:
    with rejects("unknown_stack", "a b"):
        init_project("a b", repository, options(repository))
    assert not (repository / "trainyard").exists()


@pytest.mark.parametrize("selection", ["active environment", "environment of the repository", "PATH"])
def test_launcher_runs_trainyard_of_the_environment_that_has_it(
    selection: str, repository: Path, tmp_path: Path
) -> None:
    """An active environment without Trainyard is not used, nor are folders of the repository with equal names."""
    init_project("dev", repository, options(repository))
    other = tmp_path / "another environment"
    venv.create(other, symlinks=True)
    environment = {**os.environ, "VIRTUAL_ENV": str(other), "PATH": f"{other}/bin:/usr/bin:/bin"}
    if selection == "active environment":
        environment["VIRTUAL_ENV"] = sys.prefix
    elif selection == "PATH":
        environment["PATH"] = f"{sys.prefix}/bin:/usr/bin:/bin"
    else:
        (repository / ".venv").symlink_to(sys.prefix)
    launcher = str(repository / "trainyard/launcher")
    done = subprocess.run([launcher, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "trainyard"), done.stderr


def test_launcher_without_an_environment_names_the_way_out(repository: Path, tmp_path: Path) -> None:
    init_project("dev", repository, options(repository))
    environment = {"PATH": "/usr/bin:/bin"}
    launcher = str(repository / "trainyard/launcher")
    done = subprocess.run([launcher, "--version"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Python environment with Trainyard: activate one" in done.stderr
