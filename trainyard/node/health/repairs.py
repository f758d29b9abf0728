"""Repairs of a node, which the agent carries out when no process of a job runs."""

import logging
import subprocess
from pathlib import Path
from typing import Literal

from trainyard.node.health.kernel_log import mark_repaired
from trainyard.node.health.monitor import HealthMonitor
from trainyard.node.identity import ROOT

RESET_SECONDS = 300.0
QUERY_SECONDS = 30.0
# The daemon keeps the GPUs open (https://docs.nvidia.com/deploy/driver-persistence/persistence-daemon.html).
PERSISTENCE = "nvidia-persistenced.service"
LOG = logging.getLogger("health")


def repair(action: Literal["reset", "reboot"], monitor: HealthMonitor, root: Path = ROOT) -> Literal["reset", "reboot"]:
    """Reset the GPUs of the node or reboot it; what was done. A reset that is not possible becomes a reboot.

    The monitor pauses meanwhile, because NVML keeps the GPUs in use. Raises OSError or SubprocessError if the node
    cannot be rebooted.
    """
    monitor.stop()
    try:
        if action == "reset" and _reset_gpus():
            mark_repaired(root)
            monitor.forget("reset")
            return "reset"
        subprocess.run(["systemctl", "reboot"], check=True, timeout=QUERY_SECONDS)
        return "reboot"
    finally:
        monitor.start()


def _reset_gpus() -> bool:
    """Reset all GPUs at once, as NVSwitches require; whether it succeeded.

    nvidia-smi(1), --gpu-reset: without -i all GPUs; it needs root and that no process uses them.
    """
    try:
        query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        processes = _run(query, QUERY_SECONDS).split()
        if processes:
            LOG.error("the GPUs cannot be reset: processes %s use them", ", ".join(processes))
            return False
        subprocess.run(["systemctl", "stop", PERSISTENCE], check=False, capture_output=True, timeout=QUERY_SECONDS)
        try:
            _run(["nvidia-smi", "--gpu-reset"], RESET_SECONDS)
        finally:
            subprocess.run(["systemctl", "start", PERSISTENCE], check=False, capture_output=True, timeout=QUERY_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stdout", None) or ""
        LOG.error("the GPUs cannot be reset: %s %s", error, output.strip())
        return False
    LOG.info("the GPUs were reset")
    return True


def _run(command: list[str], timeout_seconds: float) -> str:
    process = subprocess.run(
        command, check=True, text=True, timeout=timeout_seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return process.stdout
