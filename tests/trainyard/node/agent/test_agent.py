"""The agent of a node: requests of the controller, reports, and the drain of the node."""

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.polling import eventually
from tests.trainyard.node.agent.nodes import NodeWithAgent
from trainyard.models.events import AgentEvent
from trainyard.node.agent import agent as agent_module
from trainyard.node.agent import attempt as attempt_module
from trainyard.node.agent.attempt import RANK_EXIT_SECONDS, TORCHRUN_EXIT_SECONDS, AttemptTorchrun
from trainyard.node.agent.drain import Drain
from trainyard.node.agent.job_container import VARIABLE_PREFIX
from trainyard.node.agent.job_unit import Launch
from trainyard.node.identity import CONTAINER_WRAPPER

# torchrun with one rank that ignores SIGTERM, as a rank does whose main thread hangs in NCCL.
HANGING_RANK = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
TORCHRUN_WITH_HANGING_RANK = f"""
import os, subprocess, sys
os.makedirs(os.environ["METRICS_DIR"] + "/0")
with open(os.environ["METRICS_DIR"] + "/0/stderr.log", "w") as stderr:
    rank = subprocess.Popen([sys.executable, "-c", {HANGING_RANK!r}], stderr=stderr)
raise SystemExit(1 if rank.wait() else 0)
"""


def test_ranks_of_an_attempt_that_failed_on_another_node_are_killed(node: NodeWithAgent) -> None:
    (node.folder / "job.py").write_text(TORCHRUN_WITH_HANGING_RANK)
    node.request(1)
    node.wait_for("workers_up 1")
    started_at = time.monotonic()
    node.request(1, aborted=1)
    node.wait_for("workers_failed 1")
    assert time.monotonic() - started_at < RANK_EXIT_SECONDS + TORCHRUN_EXIT_SECONDS


def test_rank_that_is_writing_a_checkpoint_is_killed_later(node: NodeWithAgent) -> None:
    progress = {"rank": 0, "step": 7, "time": 1.0, "step_seconds": 1.0, "is_saving": True}
    saving = f"""
import json, os, pathlib, time
progress, folder = {progress!r}, pathlib.Path(os.environ["METRICS_DIR"])
(folder / "progress-0.json").write_text(json.dumps(progress))
time.sleep({RANK_EXIT_SECONDS + 2})
(folder / "saved").touch()
(folder / "progress-0.json").write_text(json.dumps(progress | {{"is_saving": False}}))
"""
    (node.folder / "job.py").write_text(
        TORCHRUN_WITH_HANGING_RANK.replace(repr(HANGING_RANK), repr(saving + HANGING_RANK))
    )
    node.request(1)
    node.wait_for("workers_up 1")
    eventually(lambda: any(node.folder.rglob("progress-0.json")), "the progress file")
    node.request(1, aborted=1)
    node.wait_for("workers_failed 1")
    assert any(node.folder.rglob("saved"))


def test_file_of_a_failed_rank_that_was_writing_a_checkpoint_does_not_count(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_module, "SAVE_EXIT_SECONDS", 600.0)
    progress = {"rank": 0, "step": 7, "time": 1.0, "step_seconds": 1.0, "is_saving": True}
    write = f"open(os.environ['METRICS_DIR'] + '/progress-0.json', 'w').write({json.dumps(progress)!r})"
    (node.folder / "job.py").write_text(f"import os\n{write}\n{TORCHRUN_WITH_HANGING_RANK}")
    monkeypatch.setattr(AttemptTorchrun, "output", lambda _: "Sending process 7 closing signal SIGTERM")
    node.request(1)
    node.wait_for("workers_failed 1")


def test_hanging_ranks_are_killed_when_torchrun_ends_them(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.folder / "job.py").write_text(TORCHRUN_WITH_HANGING_RANK)
    monkeypatch.setattr(AttemptTorchrun, "output", lambda _: "Sending process 7 closing signal SIGTERM")
    node.request(1)
    node.wait_for("workers_failed 1")


def test_attempt_runs_and_its_end_is_reported(node: NodeWithAgent) -> None:
    node.wait_for("ready 0")
    node.request(1)
    node.wait_for("workers_up 1")
    node.finish(0)
    node.wait_for("workers_done 1")


def test_failed_attempt_is_reported_and_the_next_attempt_runs(node: NodeWithAgent) -> None:
    node.request(1)
    node.finish(3)
    node.wait_for("workers_failed 1")
    (node.folder / "bundle/done").unlink()
    node.request(2)
    node.wait_for("workers_up 2")


def test_event_of_a_failed_attempt_has_the_health_of_the_node(node: NodeWithAgent) -> None:
    node.wait_for("ready 0")
    node.health.start()
    eventually(lambda: bool(node.health.snapshot().findings), "the finding")
    node.request(1)
    node.finish(3)
    node.wait_for("workers_failed 1")
    node.health.stop()
    events = {event.state: event for event in node.events() if isinstance(event, AgentEvent)}
    assert events["ready"].health.findings == ()
    assert [(each.rule, each.device) for each in events["workers_failed"].health.findings] == [("gpu-lost", "GPU 3")]


def test_missing_requirement_is_reported_as_a_permanent_failure_of_the_node(node: NodeWithAgent) -> None:
    node.set_requirements("missing==1.0\n")
    node.request(1)
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert event.failures[0].message.startswith("requirements.txt of the job: ")
    assert "missing" in event.failures[0].message
    assert (event.failures[0].local_rank, event.failures[0].is_permanent) == (None, True)
    eventually(lambda: "missing==1.0" in node.log("prepare"), "the log of the installation in S3")


def test_logs_of_ranks_have_the_names_of_global_ranks(node: NodeWithAgent) -> None:
    node.request(1, nodes=("i-0", "i-1"))
    node.wait_for("workers_up 1")
    logs = node.folder / "runs" / node.record.run / "attempt-0001/logs/run_x/attempt_0/1"
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("step 1\n")
    rank = node.record.processes_per_node + 1
    eventually(
        lambda: any(f"/0001-rank{rank}-stdout-" in key for key in node.cluster.data.keys(node.layout.logs)),
        f"the log of global rank {rank}",
    )


def test_job_with_satisfied_requirements_runs(node: NodeWithAgent) -> None:
    node.set_requirements("boto3\n")
    node.request(1)
    node.finish(0)
    node.wait_for("workers_done 1")


@pytest.mark.parametrize("downloads_only", [False, True])
def test_a_download_of_the_model_does_not_select_the_interpreter(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch, downloads_only: bool
) -> None:
    """Only an environment that the attempt installs replaces that of the node."""
    interpreters: list[Path] = []

    def torchrun_command(**options: Any) -> list[str]:
        interpreters.append(options["python"])
        return ["/bin/true"]

    monkeypatch.setattr(attempt_module, "torchrun_command", torchrun_command)
    monkeypatch.setattr(AttemptTorchrun, "_download_commands", lambda _: [["/bin/true"]])
    node.set_requirements("boto3\n")
    if downloads_only:
        (node.folder / "bundle/requirements.txt").unlink()
    node.request(1)
    node.wait_for("workers_done 1")
    attempt = node.folder / "runs" / node.record.run / "attempt-0001"
    environment = Path(sys.prefix) if downloads_only else attempt / "venv"
    assert interpreters == [environment / "bin/python"]


def test_superseded_attempt_is_stopped_without_checkpoint(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(2)
    node.wait_for("workers_up 2")
    assert not any(state.endswith("failed 1") for state in node.reported())
    assert not (node.folder / "bundle/saved").exists()  # without its peers it cannot save


def test_attempt_saves_a_checkpoint_before_a_scale_out(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(2, save_checkpoint=True)
    node.wait_for("workers_up 2")
    assert (node.folder / "bundle/saved").exists()


def test_requested_checkpoint_is_saved_and_the_attempt_continues(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(1, requests=1)
    eventually((node.folder / "bundle/saved").exists, "the checkpoint")
    node.finish(0)
    node.wait_for("workers_done 1")


def test_only_requests_during_the_attempt_save_a_checkpoint(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[int] = []
    state_file = node.agent._state_file
    monkeypatch.setattr(node.agent, "_save_checkpoint", lambda _: handled.append(state_file.state.checkpoint_requests))
    node.request(1, requests=1)
    node.wait_for("workers_up 1")
    node.request(1, requests=2)
    eventually(lambda: 2 in handled, "the second request")
    assert handled == [2]


def test_stop_order_ends_the_workers_but_not_the_agent(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.request(1, stop=True)
    eventually(lambda: not psutil.pid_exists(process), "the end of the workers")
    assert node.thread.is_alive()  # it must still drain the node


def test_copies_in_memory_end_with_their_run(node: NodeWithAgent) -> None:
    earlier, current = (node.folder / "memory" / name for name in ("earlier", node.record.run))
    for folder in (earlier, current):
        folder.mkdir(parents=True)
    node.kill_agent()
    node.request(attempt=1)
    node.wait_for("workers_up 1")
    assert (earlier.exists(), current.exists()) == (False, True)
    node.request(attempt=1, stop=True)
    node.wait_for("stopped 1")
    assert not current.exists()


def test_stop_order_with_save_saves_a_checkpoint(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(1, stop=True, save_checkpoint=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert (node.folder / "bundle/saved").exists()


@pytest.mark.parametrize(
    "attack",
    [
        "(requests / 'checkpoint.new').mkdir()",
        "(requests / 'checkpoint' / 'file').mkdir(parents=True)",
        "requests.rmdir()",
        "requests.rmdir(); requests.touch()",
        "requests.rmdir(); requests.symlink_to(requests)",
    ],
)
def test_job_that_prevents_a_request_is_stopped(node: NodeWithAgent, attack: str) -> None:
    (node.folder / "job.py").write_text(
        "import os, pathlib, time\nrequests = pathlib.Path(os.environ['CHECKPOINT_REQUEST']).parent\n"
        f"{attack}\npathlib.Path('attacked').touch()\ntime.sleep(600)\n"
    )
    node.request(1)
    eventually((node.folder / "bundle/attacked").exists, "the attack")
    node.wait_for("workers_up 1")
    node.request(1, stop=True, save_checkpoint=True)
    node.wait_for("stopped 1")


def test_job_without_checkpoint_requests_is_stopped_at_once(node: NodeWithAgent) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.agent.run = node.record.model_copy(update={"job": node.record.job.model_copy(update={"train": None})})
    node.request(1, stop=True, save_checkpoint=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert not (node.folder / "bundle/saved").exists()


def test_agent_that_waits_for_a_checkpoint_reports_progress(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the watchdog of systemd would restart it."""
    reported = threading.Event()
    monkeypatch.setattr(attempt_module, "report_progress", reported.set)
    (node.folder / "job.py").write_text("import time; time.sleep(600)")
    node.request(1)
    node.wait_for("workers_up 1")
    monkeypatch.setattr(agent_module, "INTERRUPTION_SECONDS", 0.1)
    node.request(1, requests=1)
    assert reported.wait(30)


def test_secrets_are_in_no_command_line_and_in_no_file(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "read_secrets", lambda *_: {"TOKEN": "top-secret"})
    node.request(1)
    node.wait_for("workers_up 1")
    runner = psutil.Process(node.unit().process_id)
    eventually(lambda: bool(runner.children()), "the job")
    (job,) = runner.children()
    assert job.environ()["TOKEN"] == "top-secret"
    assert "top-secret" not in " ".join([*runner.cmdline(), *job.cmdline(), *runner.environ().values()])
    files = [file for file in (node.folder / "runs").rglob("*") if file.is_file()]
    assert [file for file in files if b"top-secret" in file.read_bytes()] == []


def test_s3_outage_does_not_end_the_job(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    reached = threading.Event()

    def find(key: str) -> Any:
        reached.set()
        raise OSError("S3 is unavailable")

    with monkeypatch.context() as outage:
        outage.setattr(node.agent._data, "find", find)
        assert reached.wait(10)
    node.finish(0)
    node.wait_for("workers_done 1")


def test_end_of_the_job_is_reported_although_its_logs_cannot_be_written(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.request(1)
    node.wait_for("workers_up 1")

    def fail(_: AttemptTorchrun) -> None:
        raise OSError("S3 is unavailable")

    monkeypatch.setattr(AttemptTorchrun, "close", fail)
    node.finish(0)
    node.wait_for("workers_done 1")


def test_node_reports_that_a_service_did_not_respond_before_the_ranks_started(
    node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionResetError("SSM")

    monkeypatch.setattr(attempt_module, "read_secrets", fail)
    node.request(1)
    node.wait_for("workers_failed 1")
    (failure,) = [failure for event in node.events() if isinstance(event, AgentEvent) for failure in event.failures]
    assert (failure.local_rank, failure.is_outage) == (None, True)


def test_drain_saves_a_checkpoint_and_powers_the_node_off(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[list[str]] = []

    class Recorder:
        def record_lifecycle_action_heartbeat(self, **keywords: Any) -> None:
            """The emulated account tests it."""

    monkeypatch.setattr(node.agent._drain, "_autoscaling", Recorder())
    monkeypatch.setattr(node.agent._drain, "power_off", lambda cause: reported.append(node.reported()))
    node.request(1)
    node.wait_for("workers_up 1")
    node.drain_cause = "terminating"
    node.thread.join(60)
    assert not node.thread.is_alive()
    assert (node.folder / "bundle/saved").exists()
    assert ["drained 1" in states for states in reported] == [True]  # after its last report


def test_metadata_service_is_not_called_at_each_fast_poll(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    monkeypatch.setattr(Drain, "cause", lambda _: calls.append(time.monotonic()))
    monkeypatch.setattr(agent_module, "FAST_POLL_SECONDS", 0.01)
    node.request(1)
    node.wait_for("workers_up 1")
    eventually(lambda: len(calls) > 10, "calls of the metadata service")
    assert min(later - earlier for earlier, later in itertools.pairwise(calls)) >= agent_module.POLL_SECONDS


def test_each_attempt_runs_the_container_image_of_the_run(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    # The init of the node has no ExecStopPost, by which systemd removes the container.
    monkeypatch.setattr(attempt_module, "Launch", lambda writable, prepare, in_container: Launch(writable, prepare))
    image, images = f"registry.invalid/train@sha256:{'5' * 64}", node.folder / "images"
    wrapper = node.folder / CONTAINER_WRAPPER
    wrapper.parent.mkdir()
    program = [
        f"#!{sys.executable}",
        "import os, sys",
        "image, *command = [each for each in sys.argv[1:] if not each.startswith('--writable=')]",
        f"print(image, file=open({str(images)!r}, 'a'))",
        f"os.environ |= {{name.removeprefix({VARIABLE_PREFIX!r}): text for name, text in os.environ.items()}}",
        "os.execvp(command[0], command)",
    ]
    wrapper.write_text("\n".join(program))
    wrapper.chmod(0o755)
    job = node.record.job.model_copy(update={"container": image, "standby": False})
    node.agent.run = node.record.model_copy(update={"job": job})
    for attempt in (1, 2):
        node.request(attempt)
        node.wait_for(f"workers_up {attempt}")
        node.unit().kill()
        node.wait_for(f"workers_failed {attempt}")
    assert images.read_text().splitlines() == [image, image]
