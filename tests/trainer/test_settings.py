"""Environment variables of torchrun and the node's agent. Invalid values: test_bad_input.py."""

from pathlib import Path

from trainer.settings import Environment

PLACES = {"DATA_URI": "/d", "CHECKPOINT_URI": "/c", "RESULTS_URI": "/r"}


def test_torchrun_variables_are_read() -> None:
    environment = Environment.read(
        PLACES | {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    )
    assert (environment.rank, environment.local_rank, environment.world_size, environment.local_world_size) == (
        3,
        1,
        4,
        2,
    )


def test_request_files_are_in_the_metrics_folder_by_default() -> None:
    environment = Environment.read(PLACES | {"METRICS_DIR": "/m", "CHECKPOINT_REQUEST": "/requested"})
    assert (environment.checkpoint_request, environment.profile_request) == (
        Path("/requested"),
        Path("/m/profile-request"),
    )


def test_job_without_run_id_is_standalone() -> None:
    assert Environment.read(PLACES).is_standalone
    assert not Environment.read(PLACES | {"TRAINYARD_RUN": "20260131-183012-base-4f1a"}).is_standalone
