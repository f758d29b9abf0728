"""Run the node playbook with ansible-runner and stream its events to S3: `python -m trainyard.node.playbook`."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ansible_runner

from trainyard.log import configure_logging
from trainyard.models.events import PlaybookEvent, TaskEvent
from trainyard.models.manifest import Hardware, Manifest, WorkerGroup
from trainyard.node import bootstrap
from trainyard.node.agent import job_container, job_unit
from trainyard.node.agent.state import AGENT_STATE, read_state
from trainyard.node.events import open_event_writer, read_current_run
from trainyard.node.identity import (
    BASE,
    CONTAINER_NAME,
    CONTAINER_WRAPPER,
    ROOT,
    Node,
    find_group,
    read_manifest,
    read_node,
    write_configured,
)
from trainyard.node.job_user import JOB_USER

REBOOT_REQUEST = ROOT / "run/trainyard/reboot-required"
MAXIMUM_REBOOTS = 3
LOG = logging.getLogger("playbook")
_STATUS: dict[str, Literal["ok", "changed", "skipped", "failed"]] = {
    "runner_on_ok": "ok",
    "runner_on_skipped": "skipped",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "failed",
}


def read_reboot_request() -> str:
    """Reason for which a role requests a reboot before the playbook continues; empty without a request.

    A reboot deletes the request.
    """
    return REBOOT_REQUEST.read_text().strip() if REBOOT_REQUEST.exists() else ""


def is_job_active() -> bool:
    """Whether the agent runs an attempt or a health check, which a reboot would end."""
    units = ["trainyard-job.service", f"{job_unit.PREFIX}*.service"]  # active if any of them is
    if subprocess.run(["systemctl", "is-active", "--quiet", *units], check=False).returncode:
        return False
    return any(read_state(file).is_working for file in (BASE / "runs").glob(f"*/{AGENT_STATE}"))


def task_event(node: Node, event: dict[str, Any]) -> TaskEvent | None:
    """TaskEvent of one ansible-runner event; None if that event is not the end of a task."""
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
            **node.event_fields(time.time()),
            "ansible_role": data.get("role", ""),
            "task": data.get("task", ""),
            "status": status,
            "seconds": max(0.0, float(data.get("duration") or 0.0)),
            "message": message,
        }
    )


def failure_message(result: dict[str, Any]) -> str:
    """Error message of a failed task: its own message and the output of its command."""
    parts = [str(result.get(key, "")).strip() for key in ("msg", "stderr", "stdout", "exception")]
    texts = [part for part in parts if part and part != "(traceback unavailable)"]  # Ansible's placeholder
    return "\n".join(dict.fromkeys(texts))[:4000] or "no message"


def main() -> int:
    """Run head.yml or node.yml, then reboot if an Ansible role requests it. Return the exit code."""
    node, manifest = read_node(), read_manifest()
    configure_logging(node=node.instance)
    playbook = "head.yml" if node.role == "head" else "node.yml"
    container = find_container_image(node, manifest)
    changed, failure = 0, ""
    started_at = time.monotonic()
    with open_event_writer(node, manifest, "playbook") as writer:

        def handle_event(event: dict[str, Any]) -> bool:
            nonlocal changed, failure
            task = task_event(node, event)
            if task is not None:
                changed += task.status == "changed"
                if task.status == "failed":
                    failure = f"{task.ansible_role or playbook}: {task.task}: {task.message}"
                writer.write_event(task)
            return True

        def report_status(status: str, message: str, is_permanent: bool = False) -> None:
            seconds = time.monotonic() - started_at
            fields = {"status": status, "seconds": seconds, "changed": changed, "message": message}
            fields["is_permanent"] = is_permanent
            writer.write_event(PlaybookEvent.model_validate({**node.event_fields(time.time()), **fields}))

        report_status("started", "")
        writer.flush()
        try:
            require_bakeable(node)
            code = run_playbook(node, manifest, container, playbook, handle_event)
        except Exception as error:  # the launch must also see why the playbook does not start
            is_permanent = isinstance(error, NotBakeableError)
            report_status("failed", str(error) if is_permanent else f"{type(error).__name__}: {error}", is_permanent)
            raise
        succeeded = code == 0
        reboot_reason = read_reboot_request() if succeeded else ""
        if reboot_reason and int(node.boot) > MAXIMUM_REBOOTS:
            succeeded, failure = False, f"a role requests another reboot at boot {int(node.boot)}: {reboot_reason}"
        deferred = bool(succeeded and reboot_reason and is_job_active())
        if succeeded and (deferred or not reboot_reason):
            write_configured(manifest, container)
        if succeeded and reboot_reason:
            report_status("deferred" if deferred else "rebooting", reboot_reason)
        elif succeeded:
            report_status("ok", "")
        else:
            report_status("failed", failure or f"ansible-runner ended with {code}")
    if succeeded and reboot_reason and not deferred:
        LOG.info("%s: reboot: %s", playbook, reboot_reason)
        subprocess.run(["systemctl", "reboot"], check=True)
        return 0
    seconds = time.monotonic() - started_at
    if not succeeded:
        LOG.error("%s failed, %d changed, %.1f s: %s", playbook, changed, seconds, failure)
        return 1
    LOG.info("%s ok, %d changed, %.1f s", playbook, changed, seconds)
    return 0


class NotBakeableError(RuntimeError):
    """The builder cannot become an image, also not in another attempt."""


def require_bakeable(node: Node) -> None:
    """Raise NotBakeableError for a builder that is a folder of processes: it has no disk for an image."""
    if node.role == "builder" and str(ROOT) != "/":
        raise NotBakeableError(
            "a node that is a folder of processes cannot be baked: rehearse it with the nspawn backend"
        )


def runner_folder(node: Node) -> Path:
    """Working folder of ansible-runner. That of a builder is in memory, so that its image has none of these files."""
    folder = ROOT / "run/trainyard/playbook" if node.role == "builder" else BASE / "playbook"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def target_group(node: Node, manifest: Manifest) -> WorkerGroup:
    """Worker group for which this node is configured.

    A builder of another instance type has none of the group's hardware: the nodes install the drivers themselves.
    """
    group = find_group(node, manifest)
    if node.role != "builder" and not group.other_instance_types:
        return group
    instance_type = bootstrap.metadata("meta-data/instance-type")
    if node.role == "builder" and instance_type not in (group.instance_type, *group.other_instance_types):
        return group.model_copy(update={"gpus": 0, "efa_interfaces": 0, "hardware": Hardware()})
    return group.on_instance_type(instance_type)


def find_container_image(node: Node, manifest: Manifest) -> str | None:
    """Container image that this node pulls: on a worker that of its run, by digest; None without a container.

    A builder has no run: it pulls the image of the manifest, and workers pull what has changed since.
    """
    return read_current_run(node, manifest).job.container if node.role == "worker" else manifest.job.container


def run_playbook(
    node: Node,
    manifest: Manifest,
    container: str | None,
    playbook: str,
    handle_event: Callable[[dict[str, Any]], bool],
) -> int:
    """Run one playbook of the bundle on this machine; the exit code of ansible-runner.

    `container`: container image to pull, if any.
    """
    bundle = Path(node.bundle)
    worker_variables: dict[str, Any] = {}
    if node.role != "head":
        group = target_group(node, manifest).model_dump(mode="json")
        worker_variables = {"group": group, "baking": node.role == "builder"}
    runner = ansible_runner.run(
        private_data_dir=str(runner_folder(node)),
        project_dir=str(bundle / "playbooks"),
        playbook=playbook,
        inventory=f"localhost ansible_connection=local ansible_python_interpreter={ansible_interpreter(manifest)}",
        extravars={
            **manifest.node.variables,
            "manifest": manifest.model_dump(mode="json"),
            "manifest_schema": str(bundle / "schemas/manifest.schema.json"),
            "node": node.model_dump(mode="json"),
            **worker_variables,
            # Empty on a machine, where it is the root of the system.
            "root": "" if str(ROOT) == "/" else str(ROOT),
            "service_python": sys.executable,
            "job_user": JOB_USER,
            "job_container": {
                "image": container,
                "name": CONTAINER_NAME,
                "wrapper": str(BASE / CONTAINER_WRAPPER),
                "variable_prefix": job_container.VARIABLE_PREFIX,
                "client_variables": job_container.CLIENT_VARIABLES,
            },
        },
        envvars={
            "ANSIBLE_CONFIG": str(bundle / "playbooks/ansible.cfg"),
            # ansible-runner searches ansible-playbook in PATH, and no virtual environment is active.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        event_handler=handle_event,
        quiet=True,
        rotate_artifacts=5,
    )
    code: int = runner.rc
    return code


def ansible_interpreter(manifest: Manifest) -> str:
    """Python interpreter for Ansible modules: that of the system if roles change the system (it has python3-apt)."""
    return "/usr/bin/python3" if manifest.node.provisioning == "configure" else sys.executable


if __name__ == "__main__":
    sys.exit(main())
