"""What a checkpoint costs training: seconds that a step waits for it, ours over a synchronous save by torch's DCP.

Two ranks on this machine hold the same state, as in DDP, and train without a pause. A turn saves once by each way, to a
file system: ours, DCP's `save`, and torch.save by the first rank; and to S3 by ours and DCP's, where a server is at
hand. Counted is what the slower rank's training thread waits: the whole call of a synchronous save, and of ours the
call and the wait before the next update. The copy is made beside a step's gradients, which take several times as long:
they are of 256 tokens, little for a model of this size. With less to do than to copy, the update would wait for it.
While ours is written, steps go on; how much longer they took because the writing shares the cores is told as
`slowdown_seconds`.
"""

import json
import multiprocessing
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson, Runs, Server, StateMib
from benchmarks.s3_server import BUCKET, NoServer, find, serving, version

RANKS, MIB = 2, 288
_ROWS = 256  # tokens of a step's batch


class Rank:
    """One rank's training and its ways to save."""

    def __init__(self, scratch: Path, mib: int, s3: bool) -> None:
        import torch.distributed as dist

        from benchmarks.states import state_of_size
        from trainer.checkpoints import Checkpoints
        from trainyard.config.training.config import CheckpointConfig

        self._scratch = scratch
        self._state = state_of_size(mib, replicas=dist.group.WORLD)
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._ours = Checkpoints(str(scratch / "ours"), group, CheckpointConfig(keep=1))
        self._opened = [self._ours]
        self.ways: dict[str, Callable[[], float]] = {
            "ours": lambda: self.ours(self._ours),
            "dcp": lambda: self.dcp(False),
            "torch.save": self.torch_save,
        }
        self.slowdown: list[float] = []
        self.saved: list[float] = []
        self.loaded: list[float] = []
        if s3:
            in_s3 = Checkpoints(f"s3://{BUCKET}/ours/", group, CheckpointConfig(keep=1))
            self._opened.append(in_s3)
            self.ways["ours to S3"] = lambda: self.ours(in_s3)
            self.ways["dcp to S3"] = lambda: self.dcp(True)
        self.undisturbed = median(self._step() for _ in range(5))

    def ours(self, checkpoints: Any) -> float:
        """Steps go on until it is written."""
        checkpoints.wait()
        checkpoints.stalled()
        self._state.progress.step += 1
        began, steps = time.perf_counter(), 0
        checkpoints.save(self._state)
        done = False
        while not done:
            self._step(checkpoints)
            steps += 1
            done = self._all(bool(checkpoints.poll()))
        stall: float = checkpoints.stalled()
        if checkpoints is self._ours:
            self.slowdown.append(time.perf_counter() - began - steps * self.undisturbed - stall)
            self._save_and_load()
        return stall

    def dcp(self, s3: bool) -> float:
        import torch.distributed as dist
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        if s3:
            from trainer.checkpoints.s3 import s3_writer

            writer = s3_writer(f"s3://{BUCKET}/dcp/", 0)
        else:
            if dist.get_rank() == 0:
                shutil.rmtree(self._scratch / "dcp", ignore_errors=True)
            writer = FileSystemWriter(self._scratch / "dcp")
        return self._timed(lambda: save(self._content(), storage_writer=writer))

    def torch_save(self) -> float:
        import torch
        import torch.distributed as dist

        def write() -> None:
            if dist.get_rank() == 0:
                with (self._scratch / "whole.pt").open("wb") as file:
                    torch.save(self._content(), file)
                    file.flush()
            dist.barrier()

        return self._timed(write)

    def close(self) -> None:
        for checkpoints in self._opened:
            checkpoints.close()

    def _save_and_load(self) -> None:
        """Without steps beside: from the call to the commit, and back into the tensors."""

        def save() -> None:
            self._ours.save(self._state)
            self._ours.wait()

        self.saved.append(self._timed(save))
        self.loaded.append(self._timed(lambda: self._ours.resume(self._state)))

    def _content(self) -> dict[str, Any]:
        return {**self._state.tensors(), **self._state.words()}

    def _step(self, checkpoints: Any = None) -> float:
        from benchmarks.states import gradients

        began = time.perf_counter()
        gradients(self._state.model, _ROWS)
        if checkpoints:
            checkpoints.before_update()
        self._state.optimizer.step()
        self._state.optimizer.zero_grad()
        return time.perf_counter() - began

    def _timed(self, what: Callable[[], object]) -> float:
        import torch.distributed as dist

        dist.barrier()
        began = time.perf_counter()
        what()
        return time.perf_counter() - began

    def _all(self, mine: bool) -> bool:
        import torch
        import torch.distributed as dist

        done = torch.tensor(float(mine or getattr(self, "_done", False)))
        self._done = bool(done)
        dist.all_reduce(done, dist.ReduceOp.MIN)
        if done:
            self._done = False
        return bool(done)


def _run(rank: int, scratch: Path, mib: int, runs: int, s3: bool) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Detected an existing checkpoint")  # DCP's, in S3: it is written over
    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=RANKS)
    own = Rank(scratch, mib, s3)
    seconds: dict[str, list[float]] = {name: [] for name in own.ways}
    for turn in range(runs + 1):
        for name, way in sorted(own.ways.items(), reverse=turn % 2 == 1):
            dist.barrier()
            took = torch.tensor(way())
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn:
                seconds[name].append(float(took))
    own.close()
    if rank == 0:
        found = {
            "stall": seconds,
            "step": own.undisturbed,
            "slowdown": own.slowdown[1:],
            "saved": own.saved[1:],
            "loaded": own.loaded[1:],
        }
        (scratch / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measure(server: Path | None, mib: int, runs: int) -> dict[str, Any]:
    """Medians of runs that take turns, after one warm-up."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-")))
        named, missing = None, None
        try:
            program = find(server)
            stack.enter_context(serving(program))
            named = version(program)
        except NoServer as error:
            missing = str(error)
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_run, args=(rank, scratch, mib, runs, named is not None)) for rank in range(RANKS)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise SystemExit(f"ranks ended with {[rank.exitcode for rank in ranks]}")
        found = json.loads((scratch / "found.json").read_text())
    stall = {name: median(taken) for name, taken in found["stall"].items()}
    saved, loaded = median(found["saved"]), median(found["loaded"])
    return {
        "ranks": RANKS,
        "mib": mib,
        "runs": runs,
        "server": named,
        "no_s3": missing,
        "stall_seconds": {name: round(value, 4) for name, value in stall.items()},
        "step_seconds": round(found["step"], 3),
        "slowdown_seconds": round(median(found["slowdown"]), 3),
        "save_seconds": round(saved, 3),
        "load_seconds": round(loaded, 3),
        "ratio_load": round(loaded / saved, 3),
        "ratio_torch_save": round(stall["ours"] / stall["torch.save"], 4),
        "ratio_s3": round(stall["ours to S3"] / stall["dcp to S3"], 4) if named else None,
        "ratio": round(stall["ours"] / stall["dcp"], 4),
    }


def main(as_json: AsJson = False, server: Server = None, mib: StateMib = MIB, runs: Runs = 7) -> None:
    """Seconds that training waits for a checkpoint, by each way to save one."""
    found = measure(server, mib, runs)
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['mib']} MiB on {found['ranks']} ranks, medians of {found['runs']}; S3: {found['server']}")
    if found["no_s3"]:
        print(found["no_s3"])
    for name, value in found["stall_seconds"].items():
        print(f"{name:>12}: training waits {value:.4f} s")
    print(f"a step takes {found['step_seconds']} s; beside the writing {found['slowdown_seconds']} s more in all")
    print(f"save {found['save_seconds']} s, load {found['load_seconds']} s: ratio_load {found['ratio_load']}")
    print(f"over torch.save {found['ratio_torch_save']}, to S3 {found['ratio_s3']}, ratio {found['ratio']}")


if __name__ == "__main__":
    typer.run(main)
