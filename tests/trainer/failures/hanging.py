"""A rank of a job of few collectives that may hang, for the tests of trainer.failures.watch."""

import ctypes
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.failures import flight, watch
from trainer.failures.watch import Watch, group_timeout, place_of

LIMIT = 3.0
STEPS = 6


def sleeping_forever() -> None:
    time.sleep(600)


def keeping_the_lock() -> None:
    """C code that does not give Python's lock to other threads."""
    ctypes.PyDLL(None).sleep(600)


def run(way: str, sign: Path, rank: int, port: int) -> None:
    """In a process of its own. The store at `port` is not one of the ranks'."""
    with sign.with_name(f"stderr.{rank}").open("w") as told:
        os.dup2(told.fileno(), 2)
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "3"}
    os.environ.update(shared | place | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    watch.GRACE_SECONDS = 20.0
    flight.switch_on()
    dist.init_process_group("gloo", timeout=group_timeout(LIMIT))
    world_size = dist.get_world_size()
    where = place_of(torch.device("cpu"), rank)
    with Watch(rank=rank, world_size=world_size, where=where, timeout_seconds=LIMIT) as watching:
        for step in range(1, STEPS + 1):
            watching.reached(step, "forward")
            if step == 3:
                sign.with_suffix(f".{rank}").touch()
                match way, rank:
                    case "sleep", 2:
                        sleeping_forever()
                    case "silent", 2:
                        os.kill(os.getpid(), signal.SIGSTOP)
                    case "silent", 1:
                        keeping_the_lock()
                    case "slow", 0:  # the others wait for it, longer than they may by themselves
                        watching.reached(step, "evaluation", seconds=60)
                        time.sleep(2 * LIMIT)
                    case "on", _:
                        while not sign.exists():
                            watching.reached(step, "forward")
                            time.sleep(0.1)
            if way == "on":
                time.sleep(0.7)
            dist.all_reduce(torch.ones(4))
            watching.reached(step, "optimizer")
