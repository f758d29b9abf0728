"""Tagging old checkpoints and results for Deep Archive."""

import time

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.models.layout import ARCHIVED, RunLayout
from trainyard.models.run import Outcome
from trainyard.operations import archive
from trainyard.operations.cluster import Cluster

DAYS = 90


class Runs:
    """A stack and the runs in its data bucket, whose lifecycle rule moves tagged objects after DAYS."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster = cluster
        self.display = RecordingDisplay()
        clusters.add_archive_rule(cluster.data.name, DAYS)

    def write(self, run: str, *steps: int, days_ago: float | None = DAYS + 1, results: bool = True) -> None:
        """Write a run with checkpoints of these steps, each of two objects. `days_ago`: its end; None: it is active."""
        layout, data = RunLayout(run), self.cluster.data
        record = self.cluster.create_run_record().model_copy(update={"run": run})
        data.write(layout.record, record.model_dump_json().encode())
        for step in steps:
            for name in ("__0_0.distcp", ".metadata"):
                data.write(f"{layout.checkpoints}step-{step:08d}/{name}", b"x")
        if results:
            data.write(f"{layout.results}results.json", b"{}")
        if days_ago is not None:
            self.end(run, days_ago)

    def end(self, run: str, days_ago: float) -> None:
        outcome = Outcome(state="succeeded", reason="done", attempts=1, ended_at=time.time() - days_ago * 86400)
        self.cluster.data.write(RunLayout(run).outcome, outcome.model_dump_json().encode())

    def resume(self, run: str | None) -> None:
        """Set job.resume of the stack's manifest."""
        job = self.cluster.manifest.job.model_copy(update={"resume": run})
        self.cluster.manifest = self.cluster.manifest.model_copy(update={"job": job})
        self.cluster.set_groups(self.cluster.manifest.groups)

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


def test_newest_checkpoint_and_results_of_each_run_are_kept(runs: Runs) -> None:
    for run in ("a", "b", "c"):
        runs.write(run, 10, 20, days_ago=DAYS - 1)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10), step("b", 10), step("c", 10)}


def test_earlier_run_is_tagged_when_the_days_have_passed(runs: Runs) -> None:
    runs.write("a", 10, 20, days_ago=DAYS + 1)
    runs.write("b", 10, days_ago=DAYS - 1)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10), step("a", 20), "a/results"}


def test_newest_checkpoint_and_results_of_the_bucket_are_kept_forever(runs: Runs) -> None:
    runs.write("a", 10, 20, days_ago=10 * DAYS)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10)}


def test_active_run_is_not_tagged(runs: Runs) -> None:
    runs.write("a", 10, 20, days_ago=None)
    runs.write("b", 10, 20, days_ago=None)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


@pytest.mark.parametrize("is_active", [True, False])
def test_run_without_checkpoint_archives_nothing_of_another_run(runs: Runs, is_active: bool) -> None:
    runs.write("a", 20)
    runs.write("b", results=False, days_ago=None if is_active else 0)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_incomplete_checkpoint_is_not_the_newest(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b", days_ago=1)
    runs.cluster.data.write(f"{RunLayout('b').checkpoints}step-00000010/__0_0.distcp", b"x")
    runs.tag_old_objects()
    assert runs.tagged_folders() == {"a/results"}


def test_run_named_by_the_manifests_resume_is_not_tagged(runs: Runs) -> None:
    runs.resume("a")
    for run in ("a", "b", "c"):
        runs.write(run, 10)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("b", 10), "b/results"}


def test_run_that_an_active_run_resumes_from_is_not_tagged(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    runs.resume("a")
    runs.write("c", days_ago=None)
    runs.resume(None)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_tags_of_a_run_are_removed_when_it_is_resumed(runs: Runs) -> None:
    runs.write("a", 10, 20)
    runs.write("b", 10)
    runs.tag_old_objects()
    runs.resume("a")
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()
    assert runs.display.lines[1:] == ["archive a is not moved to Deep Archive, because job.resume names it"]


def test_resumed_run_is_tagged_again_later(runs: Runs) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    for resume in (None, "a", None):
        runs.resume(resume)
        runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10), "a/results"}


def test_no_checkpoint_of_a_custom_job_is_older(account: EmulatedAws) -> None:
    """A custom job may save one checkpoint as several folders."""
    runs = Runs(clusters.create_cluster(REGION, train=None, command=("train.py",)))
    runs.write("a", 10, 20, days_ago=DAYS - 1)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_checkpoints_of_a_custom_job_need_no_commit_mark(account: EmulatedAws) -> None:
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


def test_message_names_objects_time_and_prevention(runs: Runs, account: EmulatedAws) -> None:
    runs.write("a", 10, 20, days_ago=DAYS + 1)
    runs.write("b", 10, 20, 30, days_ago=1)
    runs.tag_old_objects()
    (line,) = runs.display.lines
    due = time.strftime("%Y-%m-%d", time.gmtime(time.time() + (DAYS + 1) * 86400))
    assert line.startswith(
        "archive tagged for S3 Glacier Deep Archive: 2 older checkpoints of b; checkpoints and results of a (9 objects)"
    )
    assert f"90 days after its last write (storage.archive_after_days), the first of these on {due}." in line
    assert "increase storage.archive_after_days" in line
    assert "job.resume" in line


def test_message_without_tagged_objects_is_omitted(runs: Runs) -> None:
    runs.write("a", 10, days_ago=1)
    runs.tag_old_objects()
    assert runs.display.lines == []


def test_bucket_without_archive_rule_is_not_tagged(account: EmulatedAws) -> None:
    runs = Runs(clusters.create_cluster(REGION))
    client("s3", REGION).delete_bucket_lifecycle(Bucket=runs.cluster.data.name)
    runs.write("a", 10, 20)
    runs.tag_old_objects()
    assert runs.tagged_folders() == set()


def test_later_pass_reads_no_ended_run(runs: Runs, account: EmulatedAws) -> None:
    for run in ("a", "b", "c"):
        runs.write(run, 10, 20, days_ago=DAYS - 1)
    runs.tag_old_objects()
    before = len(account.journal())
    runs.tag_old_objects()
    operations = [call.operation for call in account.journal()[before:]]
    assert operations[-3:] == ["GetBucketLifecycleConfiguration", "GetObject", "ListObjectsV2"]
    assert operations.count("ListObjectsV2") == 1


def test_run_that_has_just_ended_is_read_again(runs: Runs) -> None:
    """A node that drains saves a checkpoint after the end of the run."""
    runs.write("a", 10, days_ago=0)
    runs.tag_old_objects()
    runs.write("a", 20, days_ago=0)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10)}


def test_unreadable_state_is_created_again(runs: Runs) -> None:
    runs.cluster.data.write(ARCHIVED, b'{"of": "another version"}')
    runs.write("a", 10, 20)
    runs.tag_old_objects()
    assert runs.tagged_folders() == {step("a", 10)}


def test_next_pass_continues_after_the_time_limit(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.write("a", 10)
    runs.write("b", 10)
    with monkeypatch.context() as patch:
        patch.setattr(archive, "TIMEOUT_SECONDS", -1.0)
        runs.tag_old_objects()
    (line,) = runs.display.lines
    assert line.endswith("The next launch continues")
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
