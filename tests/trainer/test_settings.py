"""What torchrun and the node's agent put into the environment. What they may get wrong: test_bad_input.py."""

from pathlib import Path

from trainer.settings import Environment

PLACES = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}


def test_torchruns_variables_are_read() -> None:
    found = Environment.read(PLACES | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (3, 1, 4, 2)


def test_requests_lie_beside_the_metrics_where_no_place_is_given() -> None:
    found = Environment.read(PLACES | {"METRICS_DIR": "/m", "CHECKPOINT_REQUEST": "/asked"})
    assert (found.checkpoint_request, found.profile_request) == (Path("/asked"), Path("/m/profile-request"))


def test_a_job_without_a_cluster_is_alone() -> None:
    assert Environment.read(PLACES).alone
    assert not Environment.read(PLACES | {"TRAINYARD_RUN": "20260131-183012-base-4f1a"}).alone
