"""Traces of configured and requested steps."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.telemetry.blocked_storage import BlockedStorage
from trainer.settings import Environment
from trainer.storage import LocalStorage
from trainer.telemetry import profiling
from trainer.telemetry.profiling import Profiler
from trainyard.config.training.config import ProfileConfig


def run(environment: Environment, config: ProfileConfig | None, steps: range, requests: dict[int, str]) -> None:
    """Run steps. `requests`: content of the request file, by the step before which it is written."""
    profiler = Profiler(config, environment, LocalStorage(environment.results_uri, "RESULTS_URI"), torch.device("cpu"))
    for step in steps:
        if step in requests:
            environment.profile_request.write_text(requests[step])
        with profiler.step(step):
            torch.ones(4) @ torch.ones(4)
        profiler.complete_step(step)
    profiler.discard()  # torch has one profiler per process
    profiler.wait_for_uploads()


def traces(environment: Environment) -> dict[str, list[str]]:
    """Return the steps in each trace by file name."""
    steps = {}
    for file in sorted((Path(environment.results_uri) / "profiles").glob("*")):
        events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        assert any(event["name"] == "aten::dot" for event in events)
        names = {event["name"] for event in events if event["name"].startswith("step ")}
        steps[file.name] = sorted(names, key=lambda name: int(name.split()[1]))
    return steps


def test_configured_steps_are_traced(alone: Environment) -> None:
    run(alone, ProfileConfig(first_step=3, steps=2), range(1, 7), {})
    assert traces(alone) == {"step-00000003-rank-00000.trace.json.gz": ["step 3", "step 4"]}


def test_tracer_starts_in_the_step_before_the_trace(alone: Environment) -> None:
    profiler = Profiler(
        ProfileConfig(first_step=3, steps=1), alone, LocalStorage(alone.results_uri, "RESULTS_URI"), torch.device("cpu")
    )
    runs_tracer = []
    for step in range(1, 5):
        with profiler.step(step):
            runs_tracer.append(profiler.is_tracing)
        profiler.complete_step(step)
    assert runs_tracer == [False, True, True, False]


def test_first_step_of_the_process_is_traced_without_a_warm_up(alone: Environment) -> None:
    run(alone, ProfileConfig(first_step=1, steps=2), range(1, 5), {})
    assert traces(alone) == {"step-00000001-rank-00000.trace.json.gz": ["step 1", "step 2"]}


def test_request_file_traces_the_next_three_steps_and_is_removed(alone: Environment) -> None:
    run(alone, None, range(1, 5), {2: ""})
    assert alone.profile_request.exists()  # two steps of three
    assert traces(alone) == {}
    alone.profile_request.unlink()
    run(alone, None, range(11, 17), {12: ""})
    assert traces(alone) == {"step-00000013-rank-00000.trace.json.gz": ["step 13", "step 14", "step 15"]}
    assert not alone.profile_request.exists()


def test_second_request_is_handled(alone: Environment) -> None:
    run(alone, None, range(1, 12), {2: "", 7: ""})
    assert [name[:13] for name in traces(alone)] == ["step-00000003", "step-00000008"]


def test_only_requested_ranks_are_traced(alone: Environment) -> None:
    second = replace(alone, rank=1, local_rank=1, world_size=2, local_world_size=2)
    config = ProfileConfig(first_step=1, steps=1, ranks=(1,))
    run(alone, config, range(1, 3), {})
    assert traces(alone) == {}
    run(second, config, range(1, 3), {})
    assert list(traces(alone)) == ["step-00000001-rank-00001.trace.json.gz"]
    run(second, None, range(5, 9), {5: "0 7"})
    assert len(traces(alone)) == 1
    assert alone.profile_request.exists()  # the node's first rank removes it
    run(alone, None, range(4, 9), {})
    assert list(traces(alone))[-1] == "step-00000004-rank-00000.trace.json.gz"
    assert not alone.profile_request.exists()


def test_trace_that_cannot_be_saved_is_logged(alone: Environment, caplog: pytest.LogCaptureFixture) -> None:
    Path(alone.results_uri).write_text("a file instead of a folder")
    run(alone, ProfileConfig(first_step=1, steps=1), range(1, 3), {})
    assert "trace step-00000001-rank-00000.trace.json.gz not saved: " in caplog.text


def test_training_and_exit_do_not_wait_for_a_blocked_storage(
    alone: Environment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = BlockedStorage()
    monkeypatch.setattr(profiling, "UPLOAD_TIMEOUT_SECONDS", 0.1)
    profiler = Profiler(ProfileConfig(first_step=1, steps=1), alone, storage, torch.device("cpu"))
    with profiler.step(1):
        pass
    profiler.complete_step(1)
    assert not profiler.is_tracing
    profiler.wait_for_uploads()
    assert "not saved within 0 s: step-00000001-rank-00000.trace.json.gz" in caplog.text
    storage.response.set()
    monkeypatch.setattr(profiling, "UPLOAD_TIMEOUT_SECONDS", 60)
    profiler.wait_for_uploads()
    assert storage.uploads == [
        ("profiles/step-00000001-rank-00000.trace.json.gz", False)
    ]  # the process would wait for threads


def test_failed_step_discards_its_trace(alone: Environment) -> None:
    profiler = Profiler(
        ProfileConfig(first_step=1), alone, LocalStorage(alone.results_uri, "RESULTS_URI"), torch.device("cpu")
    )

    def fail() -> None:
        with profiler.step(1):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        fail()
    assert traces(alone) == {}
    run(
        alone, ProfileConfig(first_step=2, steps=1), range(2, 3), {}
    )  # torch has one profiler per process, which must be stopped
    assert len(traces(alone)) == 1
