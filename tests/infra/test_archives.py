"""Bundle and job source: equal content gives equal bytes, and secrets are refused."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.packaging import source
from infra.packaging.archive import Entry, Packed, pack
from infra.packaging.bundle import FOLDERS, OPERATOR_ONLY, SCHEMA, files_missing_in_bundle, pack_bundle
from infra.packaging.files import list_files
from infra.packaging.source import pack_source
from rehearsal.adapter.deployment import Deployment
from tests.infra.conftest import ROOT
from tests.problems import rejects

Job = Callable[..., Packed]


def names(packed: Packed) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as archive:
        return archive.getnames()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder / "__pycache__").mkdir(parents=True)
        (tmp_path / folder / "one.py").write_text(folder)
        (tmp_path / folder / "__pycache__" / "one.pyc").write_bytes(b"x")
    return tmp_path


@pytest.fixture
def job(tmp_path: Path) -> Job:
    def pack(**files: str) -> Packed:
        for name, text in files.items():
            path = tmp_path / "job" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return pack_source(tmp_path, "job")

    return pack


def test_bundle_has_the_files_of_nodes_without_byte_code(tree: Path) -> None:
    assert names(pack_bundle(tree)) == sorted([*(f"{folder}/one.py" for folder in FOLDERS), SCHEMA])


def test_bundle_contains_every_import_of_node_programs(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_bundle(ROOT).data)) as archive:
        archive.extractall(tmp_path)
    modules = [
        ".".join(path.relative_to(tmp_path).with_suffix("").parts)
        for package in ("trainyard", "trainer")
        for path in (tmp_path / package).rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    ]
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = subprocess.run(
        [sys.executable, "-c", program, *modules], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_excluded_path_exists() -> None:
    assert [name for name in OPERATOR_ONLY if not (ROOT / name).exists()] == []


def test_new_price_does_not_change_the_bundle(tree: Path) -> None:
    first = pack_bundle(tree)
    (tree / "trainyard/config/settings").mkdir(parents=True)
    for name in ("prices.json", "catalog.json", "settings/stack.py"):
        (tree / "trainyard/config" / name).write_text("changed")
    assert pack_bundle(tree) == first


def test_bundle_ignores_times_and_modes_of_files(tree: Path) -> None:
    first = pack_bundle(tree)
    for path in tree.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert pack_bundle(tree) == first


def track(tree: Path) -> None:
    """Make the tree a git repository that tracks its files."""
    for arguments in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=tree, check=True)


@pytest.mark.parametrize("name", ["playbooks/notes.txt~", "playbooks/new.yml", "trainyard/scratch.py"])
def test_untracked_file_does_not_change_the_bundle(tree: Path, name: str) -> None:
    track(tree)
    first = pack_bundle(tree)
    (tree / name).write_text("draft")
    assert pack_bundle(tree) == first


def test_untracked_files_of_nodes_are_listed(tree: Path) -> None:
    track(tree)
    (tree / ".git/info/exclude").write_text("scratch.py\n")
    for name in ("playbooks/notes.txt~", "playbooks/new.yml", "trainyard/scratch.py", "trainyard/operations/new.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("draft")
    assert files_missing_in_bundle(tree) == ["playbooks/new.yml"]


def test_bundle_is_the_same_with_and_without_a_repository(tree: Path) -> None:
    (tree / "playbooks/notes.txt~").write_text("draft")
    (tree / "playbooks/README.md").write_text("document")
    first = pack_bundle(tree)
    track(tree)
    assert pack_bundle(tree) == first


def test_folder_that_its_repository_ignores_counts_as_no_repository(tree: Path) -> None:
    first = pack_bundle(tree)
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    assert pack_bundle(tree) == first


def test_deleted_file_is_not_in_the_bundle(tree: Path) -> None:
    (tree / "playbooks/old.yml").write_text("old")
    track(tree)
    (tree / "playbooks/old.yml").unlink()
    assert "playbooks/old.yml" not in names(pack_bundle(tree))


def test_known_types_include_all_tracked_files_of_nodes() -> None:
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.splitlines() if not name.endswith(".md")} - OPERATOR_ONLY
    assert tracked - set(list_files(ROOT, FOLDERS)) == set()


def test_bytes_of_an_archive_are_the_same_in_each_version_of_python() -> None:
    files = {"b.sh": Entry(b"#!/bin/sh\n", executable=True), "a/" + "n" * 120: Entry(b"long"), "\u00e4": Entry(b"")}
    assert pack(files).sha256 == "f43cde41dde83bb62e94ae7dbb8f93d7b5dca6171ab40af00cd270b5ee5b2d76"


def test_changed_file_changes_the_bundle(tree: Path) -> None:
    first = pack_bundle(tree)
    (tree / "trainyard/one.py").write_text("changed")
    assert pack_bundle(tree).sha256 != first.sha256


def test_entries_belong_to_root_at_time_zero(tree: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_bundle(tree).data)) as archive:
        for member in archive:
            assert (member.uid, member.gid, member.mtime, member.mode) == (0, 0, 0, 0o644)


def test_archive_is_stored_under_its_sha256(tree: Path, tmp_path: Path) -> None:
    packed = pack_bundle(tree)
    path = packed.store(tmp_path / "store")
    assert path == packed.store(tmp_path / "store")
    assert (path.name, path.read_bytes()) == (f"{packed.sha256}.tar", packed.data)


def test_source_above_the_project_is_packed_without_the_project(tmp_path: Path) -> None:
    """Otherwise a changed stack file would change the job."""
    project = tmp_path / "trainyard"
    project.mkdir()
    for file in (project / "Pulumi.a.yaml", tmp_path / "train.py"):
        file.touch()
    assert names(pack_source(project, "..")) == ["train.py"]
    assert pack_source(project, str(tmp_path)) == pack_source(project, "..")


def test_source_keeps_the_executable_mode(job: Job, tmp_path: Path) -> None:
    job(**{"run.sh": "#!/bin/sh"})
    (tmp_path / "job/run.sh").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(job().data)) as archive:
        assert archive.getmember("run.sh").mode == 0o755


def test_source_applies_its_ignore_file(job: Job) -> None:
    ignore = "# data\n*.bin\nruns/\n/notes.txt\n"
    files = {"train.py": "1", "a.bin": "x", "runs__log": "x", "notes.txt": "x", "sub__runs.py": "1"}
    assert names(job(**{".trainyardignore": ignore}, **files)) == ["sub/runs.py", "train.py"]


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.local", "id_rsa", "sub__id_ed25519", ".netrc", ".npmrc", "sub__.pypirc", ".git-credentials"),
        *(".aws__credentials", "home__.aws__config", ".aws__sso__cache__a.json", ".docker__config.json"),
        *(".kube__config", ".cache__huggingface__token", "certificate.p12"),
    ],
)
def test_file_of_secrets_is_refused_by_name(job: Job, name: str) -> None:
    with rejects("source_file_refused", name.replace("__", "/")):
        job(**{"train.py": "1", name: "secret"})


def test_refused_file_names_the_ignore_file_and_the_secrets_of_the_job(job: Job) -> None:
    with rejects("source_file_refused", "job/.npmrc", "every node", "job/.trainyardignore", "job.secrets"):
        job(**{"train.py": "1", ".npmrc": "secret"})


@pytest.mark.parametrize(
    "name", ["credentials", "config", "id_rsa.pub", "environment", "config.json", "token", "ca.pem"]
)
def test_other_file_is_not_refused_by_name(job: Job, name: str) -> None:
    assert names(job(**{name: "1"})) == [name]


@pytest.mark.parametrize("start", ["", "-----BEGIN CERTIFICATE-----\n" + "x" * 9000 + "\n", '{"private_key": "'])
@pytest.mark.parametrize("end", ["\n", "\\n"])
def test_private_key_is_refused_under_any_name(job: Job, start: str, end: str) -> None:
    key = f"{start}-----BEGIN OPENSSH PRIVATE KEY-----{end}abc{end}"
    with rejects("source_file_refused", "notes.pem"):
        job(**{"train.py": "1", "notes.pem": key})


def test_code_that_compares_with_the_marker_of_a_key_is_not_refused(job: Job) -> None:
    assert names(job(**{"train.py": 'MARKER = b"-----BEGIN PRIVATE KEY-----"\n'})) == ["train.py"]


def test_ignored_secret_is_no_reason_to_refuse(job: Job) -> None:
    assert names(job(**{"train.py": "1", ".env": "A=1", ".trainyardignore": ".env"})) == ["train.py"]


def test_script_that_an_ignore_file_excludes_is_refused(job: Job, tmp_path: Path) -> None:
    job(**{"train.py": "1", "other.py": "1", ".gitignore": "/train.py\n"})
    with rejects("script_ignored", "job.command = 'train.py': .gitignore or .trainyardignore excludes it"):
        pack_source(tmp_path, "job", "train.py")


def test_link_out_of_the_folder_is_refused(job: Job, tmp_path: Path) -> None:
    job(**{"train.py": "1"})
    (tmp_path / "outside").write_text("x")
    (tmp_path / "job/link").symlink_to(tmp_path / "outside")
    with rejects("source_file_refused", "link"):
        job()


@pytest.mark.parametrize("target", ["..", "../outside"])
def test_link_to_a_folder_outside_is_refused(job: Job, tmp_path: Path, target: str) -> None:
    job(**{"train.py": "1"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "job/link").symlink_to(target)
    with rejects("source_file_refused", "job/link", "outside the folder"):
        job()


def test_link_within_the_folder_is_packed_as_its_file(job: Job, tmp_path: Path) -> None:
    job(**{"train.py": "1"})
    (tmp_path / "job/link.py").symlink_to("train.py")
    assert names(job()) == ["link.py", "train.py"]


def test_source_over_the_cap_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LIMIT_BYTES", 10)
    with rejects("source_too_large", "train.py"):
        job(**{"train.py": "x" * 11})


def test_bundle_object_is_stored_under_its_sha256(local: Deployment) -> None:
    stored = local.resource("aws:s3/bucketObjectv2:BucketObjectv2", "archives-bundle").inputs
    path = Path(stored["source"].path)
    assert stored["key"] == f"bundle/{path.name}"
    assert path.is_file()
