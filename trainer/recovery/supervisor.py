"""Runs the ranks of one node in place of torchrun: `python -m trainer.recovery.supervisor OPTIONS -m trainer ...`.

It accepts the torchrun options that the node's agent uses, starts ranks with the same variables and log files, and
writes the same report. Unlike torchrun, it replaces a rank that a signal ends: a waiting process that has imported the
trainer becomes that rank, and the other ranks continue in their processes (trainer/recovery/members.py).

If a rank exits with a non-zero status, the rank itself is the cause (an exception, a CUDA error, a hang that the
watchdog has detected). The node may have a fault, so the attempt fails, and the controller decides. The attempt also
fails if another node has failed, or if the ranks do not recover. The supervisor of node rank 0 serves the store of the
job.
"""

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType

from torch._C._distributed_c10d import Store, TCPStore

from trainer.recovery.agreement import abandon, is_abandoned, start_generation
from trainer.recovery.members import JOIN_SECONDS, SUPERVISED
from trainer.recovery.standby import Assignment
from trainyard.log import configure_logging

STOP_SECONDS = 30.0  # from SIGTERM to SIGKILL of ranks that save a checkpoint, as torchrun
FAILED_STOP_SECONDS = 2.0  # of ranks whose peer has failed: no checkpoint can complete
# The import of the trainer takes processor time, which ranks need while they start or recover.
STANDBY_DELAY_SECONDS = 3.0
_POLL_SECONDS = 0.05
_ABANDONED_POLL_SECONDS = 0.5
_log = logging.getLogger("trainer.recovery.supervisor")


@dataclass(frozen=True)
class RankExit:
    """A rank that has ended without success."""

    rank: int
    local_rank: int
    process: int
    code: int  # negative: the signal
    time: datetime


@dataclass(frozen=True)
class Node:
    """The place of this node in the job, and the command of its ranks."""

    nodes: int
    node_rank: int
    processes: int
    variables: Mapping[str, str]  # of all ranks of this node
    logs: Path
    arguments: Sequence[str]  # of the trainer

    def rank_variables(self, local_rank: int) -> dict[str, str]:
        """Return the variables of one rank."""
        return {"RANK": str(self.rank(local_rank)), "LOCAL_RANK": str(local_rank)}

    def rank(self, local_rank: int) -> int:
        """Return the rank of a local rank."""
        return self.node_rank * self.processes + local_rank

    def rank_logs(self, local_rank: int) -> Path:
        """Return the folder of a rank's logs."""
        return self.logs / str(local_rank)


class Supervisor:
    """The ranks of one node, and the process that waits to replace one of them."""

    def __init__(self, node: Node, store: Store) -> None:
        self._node, self._store = node, store
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}  # by local rank
        self._is_stopped = self._has_finished_rank = False
        self._failures: list[RankExit] = []  # for the report
        self._replaced: list[RankExit] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        for local_rank in range(node.processes):
            self._ranks[local_rank] = self._start_rank(local_rank)
        self._standby: subprocess.Popen[bytes] | None = None
        self._start_standby_at = time.monotonic() + STANDBY_DELAY_SECONDS

    def run(self) -> int:
        """Wait for the end of all ranks of the job. Returns the exit status of the program."""
        succeeded = False
        try:
            succeeded = self._watch_ranks()
            if succeeded:
                self._wait_for_nodes()
        except (RuntimeError, OSError) as error:
            _log.warning("the ranks are no longer supervised: %s", error)
        finally:
            self._end_ranks(STOP_SECONDS if self._is_stopped else FAILED_STOP_SECONDS)
        if self._failures:
            sys.stderr.write(format_report(self._failures))
        return 0 if succeeded else 1

    def _watch_ranks(self) -> bool:
        """Replace ranks that end by a signal. Returns whether all ranks of this node have succeeded."""
        check_abandoned_at = time.monotonic()
        while self._ranks:
            time.sleep(_POLL_SECONDS)
            if self._is_stopped:
                return False
            failures = [failed for local_rank in list(self._ranks) if (failed := self._reap(local_rank))]
            if not all(self._is_replaceable(failed) for failed in failures):
                self._failures = [*failures, *self._recently_replaced()]
                abandon(self._store)
                return False
            for failed in failures:
                self._replace(failed)
            if self._standby is None and time.monotonic() >= self._start_standby_at:
                self._standby = self._start_standby()
            if time.monotonic() >= check_abandoned_at:
                check_abandoned_at = time.monotonic() + _ABANDONED_POLL_SECONDS
                if is_abandoned(self._store):
                    _log.warning("the attempt has failed on another node")
                    return False
        return True

    def _wait_for_nodes(self) -> None:
        """Wait on the first node until all nodes have finished: it serves the store."""
        finished = self._store.add("finished_nodes", 1)
        while self._node.node_rank == 0 and finished < self._node.nodes and not self._is_stopped:
            if is_abandoned(self._store):
                return
            time.sleep(_POLL_SECONDS)
            finished = self._store.add("finished_nodes", 0)

    def _recently_replaced(self) -> list[RankExit]:
        """Return the lost ranks that may have caused a failure: a rank that does not recover names no cause."""
        since = datetime.now() - timedelta(seconds=JOIN_SECONDS + FAILED_STOP_SECONDS)
        return [replaced for replaced in self._replaced if replaced.time > since]

    def _start_rank(self, local_rank: int) -> "subprocess.Popen[bytes]":
        logs = self._node.rank_logs(local_rank)
        logs.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, **self._node.variables, **self._node.rank_variables(local_rank)}
        with (logs / "stdout.log").open("ab") as output, (logs / "stderr.log").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "trainer", *self._node.arguments],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def _start_standby(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.recovery.standby", *self._node.arguments],
            env={**os.environ, **self._node.variables},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _reap(self, local_rank: int) -> RankExit | None:
        """Return the failure of a rank, if it has ended with one."""
        process = self._ranks[local_rank]
        code = process.poll()
        if code is None:
            return None
        del self._ranks[local_rank]
        if code == 0:
            self._has_finished_rank = True
            return None
        return RankExit(self._node.rank(local_rank), local_rank, process.pid, code, datetime.now())

    def _is_replaceable(self, failed: RankExit) -> bool:
        """Whether another process can take the place of a rank that has ended. A finished job has no state to copy."""
        return failed.code < 0 and not self._has_finished_rank and not is_abandoned(self._store)

    def _replace(self, failed: RankExit) -> None:
        process, self._standby = self._standby, None
        self._start_standby_at = time.monotonic() + STANDBY_DELAY_SECONDS
        if process is None or process.poll() is not None:
            process = self._start_standby()
        generation, local_rank = start_generation(self._store), failed.local_rank
        logs, variables = self._node.rank_logs(local_rank), self._node.rank_variables(local_rank)
        assert process.stdin is not None
        process.stdin.write(Assignment(variables=variables, logs=logs).model_dump_json().encode() + b"\n")
        process.stdin.close()
        self._ranks[local_rank] = process
        self._replaced.append(failed)
        text = "rank %d (pid: %d) ended by signal %d; pid %d replaces it in generation %d of the job"
        _log.warning(text, failed.rank, failed.process, -failed.code, process.pid, generation)

    def _end_ranks(self, timeout_seconds: float) -> None:
        """End all processes: SIGTERM, then SIGKILL after `timeout_seconds`."""
        if self._standby is not None:
            self._standby.kill()
            self._standby.wait()
        for process in self._ranks.values():
            _log.warning("Sending process %d closing signal SIGTERM", process.pid)  # torchrun's message
            process.terminate()
        deadline = time.monotonic() + timeout_seconds
        while any(process.poll() is None for process in self._ranks.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        for process in self._ranks.values():
            process.kill()
            process.wait()

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True


def format_report(failures: Sequence[RankExit]) -> str:
    """Return the report of torchrun for these failures: the node's agent parses it (rank_failures.py)."""
    lines = ["=" * 60, "trainer FAILED", "-" * 60, "Failures:"]
    for number, failed in enumerate(failures):
        lines += [
            f"[{number}]:",
            f"  time      : {failed.time:%Y-%m-%d_%H:%M:%S}",
            f"  host      : {socket.gethostname()}",
            f"  rank      : {failed.rank} (local_rank: {failed.local_rank})",
            f"  exitcode  : {failed.code} (pid: {failed.process})",
        ]
    return "\n".join([*lines, "=" * 60, ""])


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse OPTIONS -m trainer ARGUMENTS. Options of torchrun that do not apply to the supervisor are ignored."""
    parser = argparse.ArgumentParser(prog="trainer.recovery.supervisor", description="Run the ranks of one node.")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, required=True)
    parser.add_argument("--rdzv-id", required=True, help="id of the attempt")
    parser.add_argument("--rdzv-conf", default="timeout=300", help="limit of the wait for the first node")
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("-m", dest="module", choices=["trainer"], required=True)
    end = argv.index("-m") + 2 if "-m" in argv else len(argv)
    options, _ = parser.parse_known_args(argv[:end])
    options.arguments = argv[end:]
    return options


def describe_node(arguments: argparse.Namespace) -> Node:
    """Return the node of these arguments."""
    processes = arguments.nproc_per_node
    variables = {
        "MASTER_ADDR": arguments.master_addr,
        "MASTER_PORT": str(arguments.master_port),
        "WORLD_SIZE": str(arguments.nnodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(arguments.node_rank),
        "TORCHELASTIC_RUN_ID": arguments.rdzv_id,
        SUPERVISED: "1",
        # Else NCCL's watchdog ends the ranks that have lost a peer (torch, docstring of `_abort_process_group`).
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    }
    if processes > 1:
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # as torchrun
    return Node(
        nodes=arguments.nnodes,
        node_rank=arguments.node_rank,
        processes=processes,
        variables=variables,
        logs=arguments.log_dir / arguments.rdzv_id / "attempt_0",
        arguments=arguments.arguments,
    )


def main() -> int:
    """Run the program. Returns 0 if all ranks of this node have succeeded, else 1."""
    arguments = parse_arguments(sys.argv[1:])
    configure_logging("trainer.recovery", sys.stderr)
    node = describe_node(arguments)
    store = TCPStore(
        arguments.master_addr,
        arguments.master_port,
        is_master=node.node_rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=float(arguments.rdzv_conf.removeprefix("timeout="))),
    )
    return Supervisor(node, store).run()


if __name__ == "__main__":
    raise SystemExit(main())
