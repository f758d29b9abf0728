"""A repository with broken code: the rehearsal reports each wrong value and fails."""

import os
import shutil

import pytest

from tests.rehearsal.conftest import COPY_IGNORE, ROOT, run_rehearsal, write_stack

pytestmark = pytest.mark.slow

# File, original code, broken code.
BREAKS = [
    # a wrong last loss in results.json
    ("trainer/telemetry/results.py", "last_loss=progress.last_loss", "last_loss=progress.last_loss + 1"),
    # a listed checkpoint that does not exist
    ("trainyard/models/saved.py", "s3://{bucket}/{prefix}{name}", "s3://{bucket}/{prefix}step-99999999/"),
    # a resource that destroy does not delete
    ("rehearsal/adapter/network.py", "release_address(AllocationId=call.id)", "describe_addresses()"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The errors of a rehearsal of that repository, in a network namespace with a loopback interface only."""
    tree = tmp_path_factory.mktemp("broken") / "trainyard"
    shutil.copytree(ROOT, tree, ignore=COPY_IGNORE)
    for name, original, broken in BREAKS:
        text = (tree / name).read_text()
        assert text.count(original) == 1, f"{name} has changed: update BREAKS"
        (tree / name).write_text(text.replace(original, broken))
    train = {"steps": 1, "batch_size": 4}
    job = {"merge": True, "processes_per_node": 1, "train": train}
    write_stack(tree, "broken", nodes=1, job=job)
    ended = run_rehearsal(tree, "--stack", "broken", prefix=loopback_only_command(), timeout_seconds=300)
    assert ended.exit_status == 1, ended.stderr
    assert not ended.report["ok"]
    return "\n".join(ended.report["errors"])


def loopback_only_command() -> list[str]:
    """Return a command prefix for a network namespace with a loopback interface only; an empty list without root."""
    if os.geteuid() != 0:
        return []
    return ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def test_wrong_results_are_reported(errors: str) -> None:
    assert "first loss, last loss and steps are" in errors


def test_checkpoint_that_does_not_load_is_reported(errors: str) -> None:
    assert "step-99999999/ does not load" in errors


def test_leaked_resource_is_reported(errors: str) -> None:
    assert "leaked: ec2 elastic-ip eipalloc-" in errors
