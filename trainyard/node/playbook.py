"""Run the node playbook with ansible-runner and stream its events to S3: `python -m trainyard.node.playbook`."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ansible_runner

from trainyard.models.events import PlayEvent, TaskEvent
from trainyard.models.manifest import Hardware, Manifest, WorkerGroup
from trainyard.node import bootstrap
from trainyard.node.events import events_writer
from trainyard.node.identity import BASE, ROOT, Node, manifest_at_boot, own_group, this_node

REBOOT = ROOT / "run/trainyard/reboot-required"
MOST_REBOOTS = 3
_STATUS: dict[str, Literal["ok", "changed", "skipped", "failed"]] = {
    "runner_on_ok": "ok",
    "runner_on_skipped": "skipped",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "failed",
}


def asked_to_reboot() -> str:
    """Why a role wants the machine started again before the play goes on; empty where none does. A reboot clears it."""
    return REBOOT.read_text().strip() if REBOOT.exists() else ""


def job_may_run() -> bool:
    """Whether the job's agent runs: this play is not the one that configures the node, but of a changed manifest."""
    return subprocess.run(["systemctl", "is-active", "--quiet", "trainyard-job.service"], check=False).returncode == 0


def task_event(node: Node, event: dict[str, Any]) -> TaskEvent | None:
    """One ansible-runner event as ours; None for those that say nothing of a task's end."""
    data = event.get("event_data", {})
    status = _STATUS.get(event.get("event", ""))
    if status is None or (status == "failed" and data.get("ignore_errors")):
        return None
    result = data.get("res") or {}
    if status == "ok" and result.get("changed"):
        status = "changed"
    message = ""
    if status == "failed":
        message = failure_message(result)
    elif str(data.get("task_action", "")).endswith("debug"):
        message = str(result.get("msg", ""))
    return TaskEvent.model_validate(
        {
            **node.stamp(time.time()),
            "ansible_role": data.get("role", ""),
            "task": data.get("task", ""),
            "status": status,
            "seconds": max(0.0, float(data.get("duration") or 0.0)),
            "message": message,
        }
    )


def failure_message(result: dict[str, Any]) -> str:
    """What a failed task says of itself: its message, and what the command that it ran wrote."""
    parts = [str(result.get(key, "")).strip() for key in ("msg", "stderr", "stdout", "exception")]
    said = [part for part in parts if part and part != "(traceback unavailable)"]  # Ansible's filler
    return "\n".join(dict.fromkeys(said))[:4000] or "no message"


def main() -> int:
    node, manifest = this_node(), manifest_at_boot()
    playbook = "head.yml" if node.role == "head" else "node.yml"
    changed, failed = 0, ""
    began = time.monotonic()
    with events_writer(node, manifest, "play") as writer:

        def handle(event: dict[str, Any]) -> bool:
            nonlocal changed, failed
            told = task_event(node, event)
            if told is not None:
                changed += told.status == "changed"
                if told.status == "failed":
                    failed = f"{told.ansible_role or playbook}: {told.task}: {told.message}"
                writer.tell(told)
            return True

        def ended(status: str, message: str) -> None:
            told = {"status": status, "seconds": time.monotonic() - began, "changed": changed, "message": message}
            writer.tell(PlayEvent.model_validate({**node.stamp(time.time()), **told}))

        ended("started", "")
        writer.flush()
        try:
            require_bakeable(node)
            code = run_playbook(node, manifest, playbook, handle)
        except Exception as error:  # also what keeps the play from starting is said in S3
            ended("failed", f"{type(error).__name__}: {error}")
            raise
        good = code == 0
        reason = asked_to_reboot() if good else ""
        if reason and int(node.boot) > MOST_REBOOTS:
            good, failed = False, f"a role asks for a reboot at boot {int(node.boot)} still: {reason}"
        deferred = bool(good and reason and job_may_run())
        if good and reason:
            ended("deferred" if deferred else "rebooting", reason)
        else:
            ended("ok" if good else "failed", "" if good else failed or f"ansible-runner ended with {code}")
    if good and reason and not deferred:
        print(f"play {playbook}: reboots, {reason}", flush=True)
        subprocess.run(["systemctl", "reboot"], check=True)
        return 0
    seconds = time.monotonic() - began
    print(f"play {playbook}: {'ok' if good else 'failed'}, {changed} changed, {seconds:.1f} s {failed}", flush=True)
    return 0 if good else 1


def require_bakeable(node: Node) -> None:
    """Raises RuntimeError for a builder that is no machine: there is no disk of its own to make an image of."""
    if node.role == "builder" and str(ROOT) != "/":
        raise RuntimeError("a node that is a folder of processes can't be baked: rehearse it with booted nodes")


def play_folder(node: Node) -> Path:
    """Where ansible-runner works. A builder's is in memory: what it still writes at its end is in no image."""
    folder = ROOT / "run/trainyard/play" if node.role == "builder" else BASE / "play"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def configured_for(node: Node, manifest: Manifest) -> WorkerGroup:
    """The group that this node configures itself for. A builder of another type has none of the group's hardware: what
    drives it is left to the nodes."""
    group = own_group(node, manifest)
    if node.role == "builder" and bootstrap.metadata("meta-data/instance-type") != group.instance_type:
        return group.model_copy(update={"gpus": 0, "efa_interfaces": 0, "hardware": Hardware()})
    return group


def run_playbook(node: Node, manifest: Manifest, playbook: str, handle: Callable[[dict[str, Any]], bool]) -> int:
    """Run one playbook of the bundle on this machine; ansible-runner's exit code."""
    bundle = Path(node.bundle)
    more: dict[str, Any] = {}
    if node.role != "head":
        more = {"group": configured_for(node, manifest).model_dump(mode="json"), "baking": node.role == "builder"}
    runner = ansible_runner.run(
        private_data_dir=str(play_folder(node)),
        project_dir=str(bundle / "playbooks"),
        playbook=playbook,
        inventory=f"localhost ansible_connection=local ansible_python_interpreter={interpreter(manifest)}",
        extravars={
            **manifest.node.variables,
            "manifest": manifest.model_dump(mode="json"),
            "manifest_schema": str(bundle / "schemas/manifest.schema.json"),
            "node": node.model_dump(mode="json"),
            **more,
            # Empty on a machine: its root is the system's. A node that is a folder has its own.
            "root": "" if str(ROOT) == "/" else str(ROOT),
            "play_python": sys.executable,
        },
        envvars={
            "ANSIBLE_CONFIG": str(bundle / "playbooks/ansible.cfg"),
            # ansible-playbook is looked up there, and no virtual environment is active.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        event_handler=handle,
        quiet=True,
        rotate_artifacts=5,
    )
    code: int = runner.rc
    return code


def interpreter(manifest: Manifest) -> str:
    """Python of Ansible's modules: the system's where the play changes the system (it has python3-apt)."""
    return "/usr/bin/python3" if manifest.node.system == "configure" else sys.executable


if __name__ == "__main__":
    sys.exit(main())
