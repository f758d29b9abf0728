"""A rank is killed and its peers hang: the job continues from its newest checkpoint on the same nodes."""

from pathlib import Path

import pytest

from tests.rehearsal.conftest import run_rehearsal

pytestmark = pytest.mark.slow


def test_job_continues_after_a_rank_is_killed_and_its_peers_hang(tree: Path) -> None:
    fault = "rank-kill,rank=3,step=10,peers=hang"
    ended = run_rehearsal(tree, "--stack", "local", "--set", "job.train.steps=60", "--fault", fault)
    assert ended.exit_status == 0, ended.stderr
    assert fault in ended.report["faults"]
    assert ended.report["faults_without_effect"] == []
    assert ended.report["last_loss"] < ended.report["first_loss"]
