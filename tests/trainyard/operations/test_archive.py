"""What is marked for Deep Archive, and what never is."""

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import Recorder
from trainyard.aws.s3 import client
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Outcome
from trainyard.operations import archive
from trainyard.operations.cluster import Cluster


class Runs:
    """A stack's runs as the data bucket holds them."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.cluster = cluster
        self.show = Recorder()

    def leave(self, run: str, *steps: int, over: bool = True, results: bool = True) -> None:
        """A run with these checkpoints, each of two objects."""
        layout, data = RunLayout(run), self.cluster.data
        record = self.cluster.record().model_copy(update={"run": run})
        data.write(layout.record, record.model_dump_json().encode())
        for step in steps:
            for name in ("__0_0.distcp", ".metadata"):
                data.write(f"{layout.checkpoints}step-{step:08d}/{name}", b"x")
        if results:
            data.write(f"{layout.results}results.json", b"{}")
        if over:
            outcome = Outcome(state="succeeded", reason="done", attempts=1, ended=1.0)
            data.write(layout.outcome, outcome.model_dump_json().encode())

    def mark(self) -> None:
        archive.mark_old(Cluster(self.cluster.stack, REGION), self.show)

    def tags(self, key: str) -> dict[str, str]:
        found = client("s3", REGION).get_object_tagging(Bucket=self.cluster.data.name, Key=key)
        return {tag["Key"]: tag["Value"] for tag in found["TagSet"]}

    def marked(self) -> set[str]:
        """Folders of runs/ in which all objects are marked; fails where one is marked in part."""
        found: dict[str, set[bool]] = {}
        for key in self.cluster.data.keys("runs/"):
            folder = key.removeprefix("runs/").rpartition("/")[0]
            found.setdefault(folder, set()).add(self.tags(key).get("trainyard:archive") == "old")
        assert all(len(each) == 1 for each in found.values()), found
        return {folder for folder, each in found.items() if each == {True}}


@pytest.fixture
def runs(account: EmulatedAws) -> Runs:
    return Runs(clusters.build(REGION))


def step(run: str, number: int) -> str:
    return f"{run}/checkpoints/step-{number:08d}"


def test_all_that_older_runs_left_is_marked_and_of_the_newest_only_older_checkpoints(runs: Runs) -> None:
    runs.leave("a", 10, 20)
    runs.leave("b", 10)
    runs.leave("c", 10, 20, 30)
    runs.mark()
    assert runs.marked() == {
        step("a", 10),
        step("a", 20),
        "a/results",
        step("b", 10),
        "b/results",
        step("c", 10),
        step("c", 20),
    }
    assert runs.show.lines == ["archive old objects marked for Deep Archive: 12"]


def test_nothing_is_marked_of_a_run_that_goes_on(runs: Runs) -> None:
    runs.leave("a", 10, 20, over=False)
    runs.leave("b", 10, 20, over=False)
    runs.mark()
    assert runs.marked() == set()


def test_the_newest_checkpoint_of_all_stays_when_the_newest_run_left_none(runs: Runs) -> None:
    runs.leave("a", 10, 20)
    runs.leave("b", results=False)
    runs.mark()
    assert runs.marked() == {step("a", 10)}


def test_a_checkpoint_that_was_cut_is_not_the_newest(runs: Runs) -> None:
    runs.leave("a", 10)
    runs.leave("b")
    runs.cluster.data.write(f"{RunLayout('b').checkpoints}step-00000010/__0_0.distcp", b"x")
    runs.mark()
    assert runs.marked() == {"a/results"}


def test_what_a_run_resumes_from_is_not_marked(account: EmulatedAws) -> None:
    runs = Runs(clusters.build(REGION, resume="a"))
    runs.leave("a", 10, 20)
    runs.leave("b", 10)
    runs.leave("c", 10, over=False)
    runs.mark()
    assert runs.marked() == {step("b", 10), "b/results"}


def test_what_the_current_run_resumes_from_is_not_marked(runs: Runs) -> None:
    job = runs.cluster.manifest.job.model_copy(update={"resume": "a"})
    record = runs.cluster.record().model_copy(update={"job": job})
    runs.cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    runs.leave("a", 10)
    runs.leave("b", 10)
    runs.mark()
    assert runs.marked() == set()


def test_a_users_checkpoints_are_known_by_being_there(account: EmulatedAws) -> None:
    runs = Runs(clusters.build(REGION, train=None, command=("train.py",)))
    for run in ("a", "b"):
        runs.leave(run)
        runs.cluster.data.write(f"{RunLayout(run).checkpoints}model.pt", b"x")
    runs.mark()
    assert runs.marked() == {"a/checkpoints", "a/results"}


def test_other_tags_stay(runs: Runs) -> None:
    runs.leave("a", 10)
    runs.leave("b", 10)
    key = f"{RunLayout('a').results}results.json"
    client("s3", REGION).put_object_tagging(
        Bucket=runs.cluster.data.name, Key=key, Tagging={"TagSet": [{"Key": "owner", "Value": "me"}]}
    )
    runs.mark()
    assert runs.tags(key) == {"owner": "me", "trainyard:archive": "old"}


def test_a_second_pass_looks_at_no_object(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.leave("a", 10, 20)
    runs.leave("b", 10, 20)
    runs.mark()

    def look(*_: object) -> bool:
        raise AssertionError("an object was looked at")

    monkeypatch.setattr("trainyard.aws.s3.Bucket.add_tag", look)
    runs.mark()
    assert len(runs.show.lines) == 1


def test_a_pass_that_takes_too_long_goes_on_another_time(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.leave("a", 10)
    runs.leave("b", 10)
    with monkeypatch.context() as hurried:
        hurried.setattr(archive, "SECONDS", -1.0)
        runs.mark()
    assert runs.show.lines == ["archive old objects marked for Deep Archive: 0; the next launch goes on with the rest"]
    runs.mark()
    assert runs.marked() == {step("a", 10), "a/results"}


def test_a_failure_is_told_and_fails_nothing(runs: Runs, account: EmulatedAws) -> None:
    runs.leave("a", 10)
    runs.leave("b", 10)
    account.inject(Deny(operation="s3:PutObjectTagging"))
    try:
        runs.mark()
    finally:
        account.clear_faults()
    (line,) = runs.show.lines
    assert line.startswith("archive old checkpoints could not be marked for Deep Archive")
    runs.mark()
    assert runs.marked() == {step("a", 10), "a/results"}


def test_a_run_that_can_not_be_read_fails_nothing(runs: Runs) -> None:
    runs.leave("a", 10)
    runs.leave("b", 10)
    runs.cluster.data.write(RunLayout("a").outcome, b'{"of": "another version"}')
    runs.mark()
    (line,) = runs.show.lines
    assert line.startswith("archive old checkpoints could not be marked for Deep Archive")


def test_a_stack_that_is_not_up_has_nothing_to_mark(account: EmulatedAws) -> None:
    show = Recorder()
    archive.mark_old(Cluster("never", REGION), show)
    assert show.lines == []
