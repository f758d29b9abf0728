"""Tagging old checkpoints and results for Deep Archive."""

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Outcome
from trainyard.operations import archive
from trainyard.operations.cluster import Cluster


class Runs:
    """A stack and the runs in its data bucket."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster = cluster
        self.display = RecordingDisplay()

    def write(self, run: str, *steps: int, ended: bool = True, results: bool = True) -> None:
        """Write a run with checkpoints of these steps, each of two objects."""
        layout, data = RunLayout(run), self.cluster.data
        record = self.cluster.create_run_record().model_copy(update={"run": run})
        data.write(layout.record, record.model_dump_json().encode())
        for step in steps:
            for name in ("__0_0.distcp", ".metadata"):
                data.write(f"{layout.checkpoints}step-{step:08d}/{name}", b"x")
        if results:
            data.write(f"{layout.results}results.json", b"{}")
        if ended:
            outcome = Outcome(state="succeeded", reason="done", attempts=1, ended_at=1.0)
            data.write(layout.outcome, outcome.model_dump_json().encode())

    def tag_old_objects(self) -> None:
        archive.tag_old_objects(Cluster(self.cluster.stack, REGION), self.display)

    def tags(self, key: str) -> dict[str, str]:
        response = client("s3", REGION).get_object_tagging(Bucket=self.cluster.data.name, Key=key)
        return {tag["Key"]: tag["Value"] for tag in response["TagSet"]}

    def tagged_folders(self) -> set[str]:
        """Return the folders of runs/ in which all objects are tagged; fail when only some of a folder's are tagged."""
        folders: dict[str, set[bool]] = {}
        for key in self.cluster.data.keys("runs/"):
            folder = key.removeprefix("runs/").rpartition("/")[0]
            folders.setdefault(folder, set()).add(self.tags(key).get("trainyard:archive") == "old")
        assert all(len(tagged) == 1 for tagged in folders.values()), folders
        return {folder for folder, tagged in folders.items() if tagged == {True}}


@pytest.fixture
def runs(account: EmulatedAws) -> Runs:
    return Runs(clusters.create_cluster(REGION))


def step(run: str, number: int) -> str:
    return f"{run}/checkpoints/step-{number:08d}"


def test_older_runs_and_older_checkpoints_of_the_newest_run_are_tagged(runs: Runs) -> None:
    runs.write("a", 10, 20)
    runs.write("b", 10)
    runs.write("c", 10, 20, 30)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {
        step("a", 10),
        step("a", 20),
        "a/results",
        step("b", 10),
        "b/results",
        step("c", 10),
        step("c", 20),
    }
    assert runs.display.lines == ["archive old objects tagged for Deep Archive: 12"]


def test_active_run_is_not_tagged(runs: Runs) -> None:
    runs.write("a", 10, 20, ended=False)
    runs.write("b", 10, 20, ended=False)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_newest_checkpoint_is_not_tagged_when_the_newest_run_has_none(runs: Runs) -> None:
    runs.write("a", 10, 20)
    runs.write("b", results=False)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10)}


def test_incomplete_checkpoint_is_not_the_newest(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b")
    runs.cluster.data.write(f"{RunLayout('b').checkpoints}step-00000010/__0_0.distcp", b"x")
    runs.tag_old_objects()
    assert runs.tagged_folders() == {"a/results"}


def test_run_named_by_the_manifests_resume_is_not_tagged(account: EmulatedAws) -> None:
    runs = Runs(clusters.create_cluster(REGION, resume="a"))
    runs.write("a", 10, 20)
    runs.write("b", 10)
    runs.write("c", 10, ended=False)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("b", 10), "b/results"}


def test_run_that_the_current_run_resumes_from_is_not_tagged(runs: Runs) -> None:
    job = runs.cluster.manifest.job.model_copy(update={"resume": "a"})
    record = runs.cluster.create_run_record().model_copy(update={"job": job})
    runs.cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    runs.write("a", 10)
    runs.write("b", 10)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_checkpoints_of_a_users_job_need_no_commit_mark(account: EmulatedAws) -> None:
    runs = Runs(clusters.create_cluster(REGION, train=None, command=("train.py",)))
    for run in ("a", "b"):
        runs.write(run)
        runs.cluster.data.write(f"{RunLayout(run).checkpoints}model.pt", b"x")
    runs.tag_old_objects()
    assert runs.tagged_folders() == {"a/checkpoints", "a/results"}


def test_other_tags_are_kept(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    key = f"{RunLayout('a').results}results.json"
    client("s3", REGION).put_object_tagging(
        Bucket=runs.cluster.data.name, Key=key, Tagging={"TagSet": [{"Key": "owner", "Value": "me"}]}
    )
    runs.tag_old_objects()
    assert runs.tags(key) == {"owner": "me", "trainyard:archive": "old"}


def test_second_pass_does_not_read_tagged_objects(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.write("a", 10, 20)
    runs.write("b", 10, 20)
    runs.tag_old_objects()

    def fail(*_: object) -> bool:
        raise AssertionError("an object was read")

    monkeypatch.setattr("trainyard.aws.s3.Bucket.add_tag", fail)
    runs.tag_old_objects()
    assert len(runs.display.lines) == 1


def test_next_pass_continues_after_the_time_limit(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    with monkeypatch.context() as patch:
        patch.setattr(archive, "TIMEOUT_SECONDS", -1.0)
        runs.tag_old_objects()
    assert runs.display.lines == ["archive old objects tagged for Deep Archive: 0; the next launch continues"]
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10), "a/results"}


def test_failure_is_reported_without_an_exception(runs: Runs, account: EmulatedAws) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    account.inject(Deny(operation="s3:PutObjectTagging"))
    try:
        runs.tag_old_objects()
    finally:
        account.clear_faults()
    (line,) = runs.display.lines
    assert line.startswith("archive old checkpoints could not be tagged for Deep Archive")
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10), "a/results"}


def test_unreadable_record_is_reported_without_an_exception(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    runs.cluster.data.write(RunLayout("a").outcome, b'{"of": "another version"}')
    runs.tag_old_objects()
    (line,) = runs.display.lines
    assert line.startswith("archive old checkpoints could not be tagged for Deep Archive")


def test_stack_that_is_not_deployed_is_ignored(account: EmulatedAws) -> None:
    display = RecordingDisplay()
    archive.tag_old_objects(Cluster("never", REGION), display)
    assert display.lines == []
