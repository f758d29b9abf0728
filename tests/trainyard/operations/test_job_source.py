"""The source of a custom job is checked, and its requirements are locked, before a launch starts a node."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from infra.packaging.archive import Entry, pack
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from tests.wheels import Wheel
from trainyard.errors import InputError
from trainyard.job_source import trials
from trainyard.job_source.resolution import ToolError
from trainyard.models.layout import MANIFEST, WHEELS, RunLayout, job_source_key, split_s3_uri, wheel_key
from trainyard.models.manifest import Archive
from trainyard.models.requirements import RequirementsLock
from trainyard.operations import job_source
from trainyard.operations.cluster import Cluster
from trainyard.operations.job_source import prepare_source, store_lock
from trainyard.operations.launch import Launch
from trainyard.operations.run_record import create_run_record

SCRIPT = "import required\n"


class Job:
    """A cluster whose job has a source, an existing environment, and a package index in a folder."""

    def __init__(self, folder: Path) -> None:
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",))
        self.display, self.index = RecordingDisplay(), folder / "index"
        self.index.mkdir()
        Wheel(name="required").build(folder).rename(self.index / "required-1.0-py3-none-any.whl")
        self.venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.venv], check=True)

    def write(self, files: dict[str, str], venv: Path | None = None, **changes: Any) -> None:
        """Upload the source and the manifest. `changes` are fields of the job."""
        packed = pack({name: Entry(text.encode()) for name, text in files.items()})
        key = job_source_key(packed.sha256)
        self.cluster.staging.write(key, packed.data)
        source = Archive(uri=f"s3://{self.cluster.staging.name}/{key}", sha256=packed.sha256)
        manifest = self.cluster.manifest
        job = manifest.job.model_copy(update={"source": source, **changes})
        node = manifest.node.model_copy(update={"package_index": str(self.index), "venv": str(venv or self.venv)})
        self.cluster.manifest = manifest.model_copy(update={"job": job, "node": node})
        self.cluster.staging.write(MANIFEST, self.cluster.manifest.model_dump_json().encode())

    def prepare(self) -> RequirementsLock | None:
        """Prepare the source, and return the lock."""
        reference = prepare_source(Cluster(self.cluster.stack, REGION), self.display)
        if reference is None:
            return None
        return RequirementsLock.model_validate_json(self.cluster.staging.read(split_s3_uri(reference.uri)[1]))


@pytest.fixture
def job(account: EmulatedAws, tmp_path: Path) -> Job:
    return Job(tmp_path)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(InputError) as error:
        act()
    return error.value.problems[0].code


def calls(account: EmulatedAws) -> list[str]:
    """Return the calls that launch or reserve capacity."""
    names = {"RunInstances", "LaunchInstances", "CreateCapacityReservation", "SetDesiredCapacity"}
    return [entry.operation for entry in account.journal() if entry.operation in names]


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"train.py": "import requiredd\n", "requirements.txt": "required\n"}, "module_not_found"),
        ({"train.py": SCRIPT, "requirements.txt": "requird==1.0\n"}, "requirements_not_resolvable"),
        ({"train.py": "def f(:\n"}, "syntax_error"),
        ({"train.py": "from json import no_such_name\n"}, "import_failed"),
    ],
    ids=["module", "requirement", "syntax", "import"],
)
def test_launch_of_a_broken_source_starts_no_node(
    job: Job, account: EmulatedAws, files: dict[str, str], code: str
) -> None:
    job.write(files)
    before = calls(account)
    assert refused(Launch(Cluster(job.cluster.stack, REGION), job.display).start) == code
    assert calls(account) == before
    assert Cluster(job.cluster.stack, REGION).current_run() is None


def test_missing_packages_are_locked_and_uploaded_once(job: Job) -> None:
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    lock = job.prepare()
    assert lock is not None
    (wheel,) = lock.wheels
    assert list(job.cluster.staging.keys(WHEELS)) == [wheel_key(wheel.sha256, wheel.file)]
    assert "source locked 1 package, uploaded 1 wheel (0.0 MB)" in job.display.lines


def test_changed_code_does_not_resolve_unchanged_requirements_again(job: Job) -> None:
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    first = job.prepare()
    for file in job.index.iterdir():
        file.unlink()
    job.write({"train.py": f"{SCRIPT}print(1)\n", "requirements.txt": "required\n"})
    assert job.prepare() == first


def test_unchanged_source_is_not_checked_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    first = job.prepare()
    monkeypatch.setattr(job_source._Preparation, "_read_archive", lambda _: pytest.fail("read again"))
    assert job.prepare() == first
    assert job.display.lines[-1] == "source unchanged since its last check"


def test_old_result_is_not_used(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    job.prepare()
    monkeypatch.setattr(job_source, "MAX_AGE_SECONDS", 0.0)
    job.prepare()
    assert sum("uploaded 1 wheel" in line for line in job.display.lines) == 2


def test_satisfied_requirements_upload_nothing_and_need_no_index(job: Job) -> None:
    job.write({"train.py": "import json\n", "requirements.txt": "# none\n"})
    job.index.joinpath("required-1.0-py3-none-any.whl").unlink()
    lock = job.prepare()
    assert lock is not None
    assert lock.wheels == ()
    assert list(job.cluster.staging.keys(WHEELS)) == []


@pytest.mark.parametrize("changes", [{"container": "image"}, {"resolve_requirements": "nodes"}])
def test_requirements_that_are_not_of_the_launch_are_not_resolved(job: Job, changes: dict[str, Any]) -> None:
    job.write({"train.py": "import os\n", "requirements.txt": "missing-package\n"}, **changes)
    assert job.prepare() is None


def test_script_is_not_tried_without_the_packages_that_nodes_resolve(job: Job) -> None:
    source = {"train.py": "import missing_package\n", "requirements.txt": "missing-package\n"}
    job.write(source, resolve_requirements="nodes")
    assert job.prepare() is None
    assert job.display.lines[-1].endswith("the script was not tried: the nodes resolve its requirements.txt")


def test_nodes_resolve_requirements_for_an_environment_that_only_they_have(job: Job, tmp_path: Path) -> None:
    job.write({"train.py": "import anything\n", "requirements.txt": "missing-package\n"}, venv=tmp_path / "on-nodes")
    assert job.prepare() is None
    assert any("the nodes resolve it" in line for line in job.display.lines)


def test_index_that_only_nodes_have_is_refused(job: Job, tmp_path: Path) -> None:
    job.index.rename(tmp_path / "moved")
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    assert refused(job.prepare) == "package_index_unreachable"


def test_wheels_of_an_s3_prefix_are_used(job: Job) -> None:
    prefix = f"s3://{job.cluster.data.name}/wheels/"
    file = job.index / "required-1.0-py3-none-any.whl"
    job.cluster.data.write(f"wheels/{file.name}", file.read_bytes())
    job.cluster.data.write("wheels/torch-2.15.0-cp312-cp312-linux_x86_64.whl", b"not downloaded")
    job.index = Path(prefix)
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    node = job.cluster.manifest.node.model_copy(update={"package_index": prefix})
    job.cluster.manifest = job.cluster.manifest.model_copy(update={"node": node})
    job.cluster.staging.write(MANIFEST, job.cluster.manifest.model_dump_json().encode())
    lock = job.prepare()
    assert lock is not None
    assert [wheel.name for wheel in lock.wheels] == ["required"]


def test_lock_is_stored_with_the_run(job: Job) -> None:
    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    cluster = Cluster(job.cluster.stack, REGION)
    reference = prepare_source(cluster, job.display)
    run = create_run_record(job.cluster.manifest, 0.0).model_copy(update={"requirements": reference})
    store_lock(cluster, run)
    assert b"required==1.0 --hash=sha256:" in job.cluster.data.read(RunLayout(run.run).requirements)


def test_failed_dry_run_is_refused(job: Job) -> None:
    files = {"train.py": "import os, sys\nsys.exit(os.environ['WORLD_SIZE'] == '1' and 'no data')\n"}
    job.write(files, dry_run=("train.py", "--dry-run"))
    assert refused(job.prepare) == "dry_run_failed"


def test_wheels_that_cannot_be_installed_are_a_warning(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ToolError("error: the wheel is not compatible")

    job.write({"train.py": SCRIPT, "requirements.txt": "required\n"})
    monkeypatch.setattr(trials, "run_tool", fail)
    assert job.prepare() is not None
    assert "not run: the wheels cannot be installed here: the wheel is not compatible" in job.display.lines[-1]


def test_dry_run_that_needs_a_value_of_nodes_is_skipped_with_a_message(job: Job) -> None:
    files = {"train.py": "import os\nos.environ['MODEL_PATH']\n"}
    job.write(files, dry_run=("train.py",), model="s3://models/m/", model_uri="s3://models/m/")
    job.prepare()
    assert any("job.dry_run is skipped (only nodes have the value of MODEL_PATH)" in line for line in job.display.lines)
