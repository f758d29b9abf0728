"""A checkpoint that the file CHECKPOINT_REQUEST requests."""

from pathlib import Path

import pytest
import torch

from trainer.job_requests import JobRequests
from trainer.settings import Environment

CPU = torch.device("cpu")


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRequests:
    monkeypatch.setattr("trainer.job_requests.signal.signal", lambda *_: None)  # pytest keeps its handlers
    variables = {"DATA_URI": "d", "CHECKPOINT_URI": "c", "RESULTS_URI": "r", "METRICS_DIR": str(tmp_path)}
    environment = Environment.read({**variables, "CHECKPOINT_REQUEST": str(tmp_path / "request")})
    (tmp_path / "request").touch()
    return JobRequests(environment)


def is_requested(requests: JobRequests) -> bool:
    return requests.is_save_requested


def test_request_counts_until_its_checkpoint_is_in_progress(requests: JobRequests) -> None:
    assert is_requested(requests)
    requests.checkpoint_started("step-1", requested=True)
    assert not is_requested(requests)


def test_request_counts_again_when_its_checkpoint_has_failed(requests: JobRequests, tmp_path: Path) -> None:
    requests.checkpoint_started("step-1", requested=True)
    requests.repeat_failed()
    assert is_requested(requests)
    requests.checkpoint_started("step-2", requested=True)
    requests.checkpoint_saved("step-2")
    assert not (tmp_path / "request").exists()
