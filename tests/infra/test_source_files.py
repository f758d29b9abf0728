"""The files of a custom job are the same with and without git, and follow its ignore files."""

import subprocess
from pathlib import Path

import pytest

from infra.packaging import files
from infra.packaging.source_files import source_files

FILES = {
    ".gitignore": "*.bin\n/runs/\ndata\n!data/sample.txt\n",
    "train.py": "",
    "model.bin": "",
    "runs/log": "",
    "package/.gitignore": "!keep.bin\n/local.py\n",
    "package/keep.bin": "",
    "package/drop.bin": "",
    "package/local.py": "",
    "package/runs/code.py": "",
    "package/deep/local.py": "",
    "data/sample.txt": "",
    "package/__pycache__/x.pyc": "",
    ".venv/bin/python": "",
    "a file \u00fc.txt": "",
}
EXPECTED = sorted(
    [
        *(".gitignore", "a file \u00fc.txt", "package/.gitignore", "package/deep/local.py", "package/keep.bin"),
        *("package/runs/code.py", "train.py"),
    ]
)


def write(folder: Path, contents: dict[str, str] = FILES) -> Path:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write(tmp_path)
    git(tmp_path, "init", "--quiet")
    return tmp_path


def listed(folder: Path) -> list[str]:
    return source_files(folder, folder / "trainyard")


def test_new_files_of_a_repository_belong_to_the_job(repository: Path) -> None:
    assert listed(repository) == EXPECTED


def test_tracked_file_belongs_to_the_job_though_a_pattern_matches_it(repository: Path) -> None:
    git(repository, "add", "--force", "model.bin")
    assert listed(repository) == sorted([*EXPECTED, "model.bin"])


def test_ignore_files_of_the_repository_count_in_a_folder_of_it(repository: Path) -> None:
    assert listed(repository / "package") == [".gitignore", "deep/local.py", "keep.bin", "runs/code.py"]


def test_deleted_file_does_not_belong_to_the_job(repository: Path) -> None:
    git(repository, "add", ".")
    (repository / "train.py").unlink()
    assert "train.py" not in listed(repository)


def test_files_outside_a_repository_follow_the_same_ignore_files(tmp_path: Path) -> None:
    assert listed(write(tmp_path)) == EXPECTED


def test_files_without_git_follow_the_same_ignore_files(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert files.git_files(repository, "--others") == []
    assert listed(repository) == EXPECTED


def test_folder_that_its_repository_ignores_counts_as_no_repository(repository: Path) -> None:
    write(repository, {"runs/job/train.py": "", "runs/job/.gitignore": "x\n", "runs/job/x": ""})
    assert listed(repository / "runs/job") == [".gitignore", "train.py"]


def test_submodule_belongs_to_the_job(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = tmp_path_factory.mktemp("library")
    write(library, {"lib.py": "", ".gitignore": "*.o\n"})
    git(library, "init", "--quiet")
    git(library, "add", ".")
    git(library, "commit", "--quiet", "-m", "x")
    git(repository, "submodule", "--quiet", "add", str(library), "third party/lib")
    write(repository, {"third party/lib/lib.o": ""})
    assert {name for name in listed(repository) if "third" in name} == {
        "third party/lib/.gitignore",
        "third party/lib/lib.py",
    }


def test_trainyardignore_excludes_tracked_files(repository: Path) -> None:
    git(repository, "add", "train.py")
    write(repository, {".trainyardignore": "# code\n/train.py\npackage/*\n!package/deep/\n"})
    assert listed(repository) == [".gitignore", "a file \u00fc.txt", "package/deep/local.py"]


@pytest.mark.parametrize(("project", "excluded"), [("deploy [a]", "deploy [a]/"), (".", "build/")])
def test_files_of_the_project_do_not_belong_to_the_job(repository: Path, project: str, excluded: str) -> None:
    write(repository, {"deploy [a]/Pulumi.a.yaml": "", "deploy a/code.py": "", "build/archives/x.tar": ""})
    names = source_files(repository, repository / project)
    assert not [name for name in names if name.startswith(excluded)]
    assert "deploy a/code.py" in names
