"""A rank of a small job that hangs in a configurable way, for the tests of the watchdog."""

import ctypes
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.failures import flight_recorder, watchdog
from trainer.failures.watchdog import Watchdog, describe_rank_location, process_group_timeout

TIMEOUT_SECONDS = 3.0
STEPS = 6


def sleep_forever() -> None:
    time.sleep(600)


def hold_the_gil() -> None:
    """Run C code that holds the GIL."""
    ctypes.PyDLL(None).sleep(600)


def run(behaviour: str, signal_file: Path, rank: int, port: int) -> None:
    """Run one rank in this process. The store at `port` belongs to the test's process."""
    with signal_file.with_name(f"stderr.{rank}").open("w") as file:
        os.dup2(file.fileno(), 2)
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "3"}
    os.environ.update(shared | ranks | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    watchdog.GRACE_SECONDS = 20.0
    flight_recorder.enable_flight_recorder()
    dist.init_process_group("gloo", timeout=process_group_timeout(TIMEOUT_SECONDS))
    world_size = dist.get_world_size()
    where = describe_rank_location(torch.device("cpu"), rank)
    with Watchdog(rank=rank, world_size=world_size, where=where, timeout_seconds=TIMEOUT_SECONDS) as watchdog_:
        for step in range(1, STEPS + 1):
            watchdog_.report_phase(step, "forward", TIMEOUT_SECONDS)
            if step == 3:
                signal_file.with_suffix(f".{rank}").touch()
                match behaviour, rank:
                    case "sleep", 2:
                        sleep_forever()
                    case "silent", 2:
                        os.kill(os.getpid(), signal.SIGSTOP)
                    case "silent", 1:
                        hold_the_gil()
                    case "slow", 0:  # the others wait longer than their time limit
                        watchdog_.report_phase(step, "evaluation", timeout_seconds=60)
                        time.sleep(2 * TIMEOUT_SECONDS)
                    case "without_store", _:
                        while not signal_file.exists():
                            watchdog_.report_phase(step, "forward", TIMEOUT_SECONDS)
                            time.sleep(0.1)
            if behaviour == "without_store":
                time.sleep(0.7)
            dist.all_reduce(torch.ones(4))
            watchdog_.report_phase(step, "optimizer", TIMEOUT_SECONDS)
