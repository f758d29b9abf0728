"""Seconds that training waits for a checkpoint: the trainer's asynchronous save over DCP's synchronous save.

The ranks on this machine, two by default, have the same state, as in DDP, and train continuously. Each run saves once
by each method: to a file system by the trainer, by DCP's `save`, and by a torch.save call of rank 0; to S3 by the
trainer and DCP, if a server is available. The result is the waiting time of the slower rank's training thread: of a
synchronous save the whole call, of the trainer's save the call and the wait before the next update. The copy overlaps
with the gradients of a step, which take several times as long: they are of 256 tokens, few for a model of this size.
With less work than the copy the update would wait for it. Steps continue during the trainer's write; `slowdown_seconds`
is the time that they lose since the write shares the cores.
"""

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Ranks, Runs, Server, StateMib
from benchmarks.ranks import MEASUREMENTS, describe, init_gloo, measure_in_ranks
from benchmarks.s3_server import BUCKET

MIB = 288
_ROWS = 256  # tokens of a step's batch


class BenchmarkRank:
    """Training and save methods of one rank."""

    def __init__(self, scratch: Path, mib: int, s3: bool) -> None:
        import torch.distributed as dist

        from benchmarks.training_state import state_of_size
        from trainer.checkpoints import Checkpoints
        from trainyard.config.training.config import CheckpointConfig

        self._scratch = scratch
        self._state = state_of_size(mib, replicas=dist.group.WORLD)
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._checkpoints = Checkpoints(str(scratch / "trainyard"), group, CheckpointConfig(keep_last=1))
        self._managers = [self._checkpoints]
        self.methods: dict[str, Callable[[], float]] = {
            "trainyard": lambda: self.save_by_trainer(self._checkpoints),
            "dcp": lambda: self.save_by_dcp(False),
            "torch.save": self.torch_save,
        }
        self.slowdown: list[float] = []
        self.saved: list[float] = []
        if s3:
            in_s3 = Checkpoints(f"s3://{BUCKET}/ours/", group, CheckpointConfig(keep_last=1))
            self._managers.append(in_s3)
            self.methods["ours to S3"] = lambda: self.save_by_trainer(in_s3)
            self.methods["dcp to S3"] = lambda: self.save_by_dcp(True)
        self.undisturbed = median(self._step() for _ in range(5))

    def save_by_trainer(self, checkpoints: Any) -> float:
        """Save while training continues, and return the waiting time in seconds."""
        checkpoints.wait()
        checkpoints.pop_stall_seconds()
        self._state.progress.step += 1
        started, steps = time.perf_counter(), 0
        checkpoints.save(self._state)
        done = False
        while not done:
            self._step(checkpoints)
            steps += 1
            done = self._is_done_on_all_ranks(bool(checkpoints.poll()))
        stall: float = checkpoints.pop_stall_seconds()
        if checkpoints is self._checkpoints:
            self.slowdown.append(time.perf_counter() - started - steps * self.undisturbed - stall)
            self._save()
        return stall

    def save_by_dcp(self, s3: bool) -> float:
        """Save synchronously with DCP, and return the duration in seconds."""
        import torch.distributed as dist
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        from benchmarks.training_state import content_of

        if s3:
            from trainer.checkpoints.s3 import s3_writer

            writer = s3_writer(f"s3://{BUCKET}/dcp/", 0)
        else:
            if dist.get_rank() == 0:
                shutil.rmtree(self._scratch / "dcp", ignore_errors=True)
            writer = FileSystemWriter(self._scratch / "dcp")
        return self._timed(lambda: save(content_of(self._state), storage_writer=writer))

    def torch_save(self) -> float:
        """Call torch.save synchronously in rank 0, and return the duration in seconds."""
        import torch
        import torch.distributed as dist

        from benchmarks.training_state import content_of

        def write() -> None:
            if dist.get_rank() == 0:
                with (self._scratch / "whole.pt").open("wb") as file:
                    torch.save(content_of(self._state), file)
                    file.flush()
            dist.barrier()

        return self._timed(write)

    def close(self) -> None:
        for checkpoints in self._managers:
            checkpoints.close()

    def _save(self) -> None:
        """Measure a save to its commit, without concurrent training steps."""

        def save() -> None:
            self._checkpoints.save(self._state)
            self._checkpoints.wait()

        self.saved.append(self._timed(save))

    def _step(self, checkpoints: Any = None) -> float:
        from benchmarks.training_state import compute_gradients

        started = time.perf_counter()
        compute_gradients(self._state.model, _ROWS)
        if checkpoints:
            checkpoints.wait_for_staging()
        self._state.optimizer.step()
        self._state.optimizer.zero_grad()
        return time.perf_counter() - started

    def _timed(self, operation: Callable[[], object]) -> float:
        import torch.distributed as dist

        dist.barrier()
        started = time.perf_counter()
        operation()
        return time.perf_counter() - started

    def _is_done_on_all_ranks(self, local: bool) -> bool:
        import torch
        import torch.distributed as dist

        done = torch.tensor(float(local or getattr(self, "_done", False)))
        self._done = bool(done)
        dist.all_reduce(done, dist.ReduceOp.MIN)
        if done:
            self._done = False
        return bool(done)


def _run(rank: int, ranks: int, scratch: Path, s3: bool, mib: int, runs: int) -> None:
    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore", "Detected an existing checkpoint")  # of DCP in S3, which overwrites it
    init_gloo(rank, ranks, scratch)
    benchmark = BenchmarkRank(scratch, mib, s3)
    seconds: dict[str, list[float]] = {name: [] for name in benchmark.methods}
    for turn in range(runs + 1):
        for name, save in sorted(benchmark.methods.items(), reverse=turn % 2 == 1):
            dist.barrier()
            elapsed = torch.tensor(save())
            dist.all_reduce(elapsed, dist.ReduceOp.MAX)
            if turn:
                seconds[name].append(float(elapsed))
    benchmark.close()
    if rank == 0:
        measurements = {
            "stall": seconds,
            "step": benchmark.undisturbed,
            "slowdown": benchmark.slowdown[1:],
            "saved": benchmark.saved[1:],
        }
        (scratch / MEASUREMENTS).write_text(json.dumps(measurements))
    dist.destroy_process_group()


def measure(server: Path | None, mib: int, runs: int, ranks: int) -> dict[str, Any]:
    """Return medians of alternating runs after one warm-up."""
    measurements, settings = measure_in_ranks(_run, server, ranks, mib=mib, runs=runs)
    stall = {name: median(values) for name, values in measurements["stall"].items()}
    saved = median(measurements["saved"])
    return settings | {
        "stall_seconds": {name: round(value, 4) for name, value in stall.items()},
        "step_seconds": round(measurements["step"], 3),
        "slowdown_seconds": round(median(measurements["slowdown"]), 3),
        "save_seconds": round(saved, 3),
        "ratio_torch_save": round(stall["trainyard"] / stall["torch.save"], 4),
        "ratio_s3": round(stall["ours to S3"] / stall["dcp to S3"], 4) if settings["server"] else None,
        "ratio": round(stall["trainyard"] / stall["dcp"], 4),
    }


def main(
    as_json: AsJson = False,
    server: Server = None,
    mib: StateMib = MIB,
    runs: Runs = 7,
    ranks: Ranks = 2,
) -> None:
    """Measure the seconds that training waits for a checkpoint, for each save method."""
    results = measure(server, mib, runs, ranks)
    if as_json:
        print(json.dumps(results))
        return
    print(describe(results))
    for name, value in results["stall_seconds"].items():
        print(f"{name:>12}: training waits {value:.4f} s")
    print(f"a step takes {results['step_seconds']} s; the write adds {results['slowdown_seconds']} s in total")
    print(f"save {results['save_seconds']} s")
    print(f"ratio to torch.save {results['ratio_torch_save']}, to S3 {results['ratio_s3']}, ratio {results['ratio']}")


if __name__ == "__main__":
    typer.run(main)
