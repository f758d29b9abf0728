"""A tree in which what the figures rest on is broken: the rehearsal sees each and fails."""

import os
import shutil

import pytest

from tests.rehearsal.conftest import LEFT_OUT, ROOT, rehearsed, write_stack

# File, what stands there, what is put in its place.
BREAKS = [
    # a loss in results.json that is not the last one
    ("trainer/telemetry/results.py", "last_loss=progress.last_loss", "last_loss=progress.last_loss + 1"),
    # a checkpoint in the list that is none
    ("trainyard/operations/runs.py", "for name in names)", 'for name in [*names, "step-99999999"])'),
    # a resource that destroy passes over
    ("rehearsal/adapter/network.py", "release_address(AllocationId=call.id)", "describe_addresses()"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a rehearsal of that tree says, in a network of its own that reaches nothing but its loopback."""
    tree = tmp_path_factory.mktemp("broken") / "trainyard"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    for name, before, after in BREAKS:
        text = (tree / name).read_text()
        assert text.count(before) == 1, f"{name} has changed: what shall be broken there?"
        (tree / name).write_text(text.replace(before, after))
    train = {"steps": 1, "batch_size": 4}
    job = {"merge": True, "processes_per_node": 1, "train": train}
    write_stack(tree, "broken", nodes=1, job=job)
    ended = rehearsed(tree, "--stack", "broken", before=loopback_only(), seconds=300)
    assert ended.status == 1, ended.told
    assert not ended.report["ok"]
    return "\n".join(ended.report["errors"])


def loopback_only() -> list[str]:
    """Words before a command that leave it the loopback alone. As root only: others run it as it is."""
    if os.geteuid() != 0:
        return []
    return ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def test_results_that_lie_are_seen(errors: str) -> None:
    assert "results.json has first loss, last loss, steps" in errors


def test_a_checkpoint_that_does_not_load_is_seen(errors: str) -> None:
    assert "step-99999999/ does not load" in errors


def test_what_stays_in_the_account_is_seen(errors: str) -> None:
    assert "leaked: ec2 elastic-ip eipalloc-" in errors
