"""Scenarios of several ranks: `python -m tests.trainer.checkpoints.ranks SCENARIO FOLDER`. The tests read the results.

One process imports torch once and forks the ranks of each phase.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.trainer.checkpoints.states import SHAPE, Net, create_state, open_checkpoints, train_step
from trainer.checkpoints import Checkpoints, State, entries, files, shared_reads
from trainer.export.safetensors_export import export_model
from trainer.storage import open_storage

Phase = Callable[[Path, int], None]


def run_ranks(count: int, phase: Phase, folder: Path) -> list[int]:
    """Run a phase on `count` ranks and return their exit statuses. A killed rank has the negative signal number."""
    store = folder / f"store-{phase.__name__}"
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
                phase(folder, rank)
                dist.destroy_process_group()
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def open_on_all_ranks(folder: Path, **config: Any) -> Checkpoints:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return open_checkpoints(folder, group, **config)


def record_reads(folder: Path, name: str) -> None:
    """Write a line to a file for each entry that this rank reads. Even the smallest entries are shared."""
    shared_reads._MIN_SHARED_BYTES = 0
    original = entries._read

    def read(stream: Any, content: memoryview, object_: str) -> None:
        offset = stream.tell()
        with (folder / f"{name}-{dist.get_rank()}.reads").open("a") as lines:
            lines.write(f"{object_} {offset} {len(content)}\n")
        original(stream, content, object_)

    entries._read = read  # type: ignore[assignment]


def sharded_state(mesh: DeviceMesh, seed: int) -> State:
    torch.manual_seed(seed)
    net = Net()
    for block in net.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    state = create_state(net, seed, replicas=mesh.get_group(0) if mesh.ndim == 2 else None)
    torch.manual_seed(seed + dist.get_rank())
    train_step(net, state.optimizer, 8)
    return state


def fsdp(folder: Path, rank: int) -> None:
    """Four ranks, each with a quarter of each tensor."""
    with open_on_all_ranks(folder / "fsdp") as checkpoints:
        state = sharded_state(init_device_mesh("cpu", (4,)), 3)
        checkpoints.save(state)
        checkpoints.wait()
    export_model(state.model, SHAPE, open_storage(str(folder / "results"), "X"), world(), limit=600)


def ddp(folder: Path, rank: int) -> None:
    """Two replicas."""
    torch.manual_seed(1 + rank)
    net = Net()
    state = create_state(net, replicas=world())
    record_reads(folder, "ddp")
    with open_on_all_ranks(folder / "fsdp") as checkpoints:
        checkpoints.resume(state)
        generator = torch.get_rng_state()
    with open_on_all_ranks(folder / "ddp") as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()
    torch.save({"state": net.state_dict(), "generator": generator}, folder / f"ddp-{rank}.pt")


def hsdp(folder: Path, rank: int) -> None:
    """Two pairs of ranks, each rank with a half of each tensor."""
    state = sharded_state(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), 9)
    record_reads(folder, "hsdp")
    with open_on_all_ranks(folder / "ddp") as checkpoints:
        checkpoints.resume(state)
    with open_on_all_ranks(folder / "hsdp", asynchronous=False) as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()


def pipeline(folder: Path, rank: int) -> None:
    """Two pipeline stages, which load the checkpoint of a whole model."""
    torch.manual_seed(rank)
    state = create_state(Net(blocks=(rank,)))
    with open_on_all_ranks(folder / "ddp") as checkpoints:
        checkpoints.resume(state)
    with open_on_all_ranks(folder / "pipeline") as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()
    export_model(state.model, SHAPE, open_storage(str(folder / "stages"), "X"), world())


def damaged(folder: Path, rank: int) -> None:
    """One rank's file of the newest checkpoint has random bytes: all ranks skip the checkpoint."""
    state = sharded_state(init_device_mesh("cpu", (2,)), 5)
    with open_on_all_ranks(folder / "damaged") as checkpoints:
        for step in (1, 2):
            state.progress.step = step
            checkpoints.save(state)
        checkpoints.wait()
        if rank == 0:
            file = folder / "damaged/step-00000002/__1_0.distcp"
            file.write_bytes(os.urandom(file.stat().st_size))
        dist.barrier()
        checkpoints.resume(state)
    (folder / f"damaged-{rank}").write_text(str(state.progress.step))


def save_replicated(folder: Path, steps: tuple[int, ...]) -> None:
    """Save checkpoints of a replicated model."""
    torch.manual_seed(4)
    net = Net()
    state = create_state(net, replicas=world())
    train_step(net, state.optimizer, 8)
    with open_on_all_ranks(folder) as checkpoints:
        for step in steps:
            state.progress.step = step
            checkpoints.save(state)
        checkpoints.wait()


def damaged_shared_entry(folder: Path, rank: int) -> None:
    """A shared entry, which a single rank reads for both, has a flipped bit."""
    save_replicated(folder / "shared", (1, 2))
    entry = max(files.read_metadata(str(folder / "shared/step-00000002")).storage_data.values(), key=lambda e: e.length)
    if rank == 0:
        with (folder / "shared/step-00000002" / entry.relative_path).open("r+b") as stream:
            stream.seek(entry.offset + entry.length // 2)
            (byte,) = stream.read(1)
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte ^ 1]))
    dist.barrier()
    shared_reads._MIN_SHARED_BYTES = 0
    state = sharded_state(init_device_mesh("cpu", (2,)), 5)
    with open_on_all_ranks(folder / "shared") as checkpoints:
        checkpoints.resume(state)
    (folder / f"shared-{rank}").write_text(str(state.progress.step))


def load_and_save(state: State, source: Path, target: Path) -> None:
    """Load the newest checkpoint of `source`, then save to `target`."""
    with open_on_all_ranks(source) as checkpoints:
        checkpoints.resume(state)
    with open_on_all_ranks(target) as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()


def read_failure(folder: Path, rank: int) -> None:
    """The storage fails once for one rank, while it reads shared entries."""
    save_replicated(folder / "read_failure", (3,))
    shared_reads._MIN_SHARED_BYTES = 0
    state = sharded_state(init_device_mesh("cpu", (2,)), 5)
    original_agree, original_read, reads = shared_reads._agree, entries._read, 0

    def agree(*args: Any) -> Any:
        if rank == 1:
            entries._read = read  # type: ignore[assignment]
        return original_agree(*args)

    def read(*args: Any) -> None:
        nonlocal reads
        reads += 1
        if reads == 4:  # the first read is of this rank's random generator
            raise ConnectionResetError("no response")
        original_read(*args)

    shared_reads._agree = agree  # type: ignore[assignment]
    load_and_save(state, folder / "read_failure", folder / "read_failure_reloaded")
    (folder / f"read_failure-{rank}").write_text(str(reads > 4))


def copy_failure(folder: Path, rank: int) -> None:
    """One rank fails to copy a received part to its target, when the other ranks are in the next round."""
    save_replicated(folder / "copy_failure", (3,))
    shared_reads._MIN_SHARED_BYTES = 0
    state = sharded_state(init_device_mesh("cpu", (2,)), 5)
    original, calls = shared_reads._Rounds._fill, 0

    def fill(self: shared_reads._Rounds, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 3:
            raise ConnectionResetError("no response")
        original(self, *args)

    shared_reads._Rounds._fill = fill  # type: ignore[method-assign, assignment]
    load_and_save(state, folder / "copy_failure", folder / "copy_failure_reloaded")
    (folder / f"copy_failure-{rank}").write_text(str(rank == 1 and calls > 3))


def killed(folder: Path, rank: int) -> None:
    """One rank is killed when it has written half of its file."""
    state = sharded_state(init_device_mesh("cpu", (2,)), 5)
    with open_on_all_ranks(folder / "killed") as checkpoints:
        state.progress.step = 1
        checkpoints.save(state)
        checkpoints.wait()
        if rank == 1:

            class KilledWriter(FileSystemWriter):
                def write_data(self, plan: Any, planner: Any) -> Any:
                    super().write_data(plan, planner)
                    os.kill(os.getpid(), signal.SIGKILL)

            files.FileSystemWriter = KilledWriter  # type: ignore[attr-defined]
        state.progress.step = 2
        checkpoints.save(state)
        checkpoints.wait()


def resumed(folder: Path, rank: int) -> None:
    """Two new ranks resume after the kill."""
    state = sharded_state(init_device_mesh("cpu", (2,)), 6)
    with open_on_all_ranks(folder / "killed") as checkpoints:
        checkpoints.resume(state)
    (folder / f"resumed-{rank}").write_text(str(state.progress.step))


PHASES: dict[str, list[tuple[int, Phase]]] = {
    "layouts": [(4, fsdp), (2, ddp), (4, hsdp), (2, pipeline)],
    "failures": [
        (2, damaged),
        (2, damaged_shared_entry),
        (2, read_failure),
        (2, copy_failure),
        (2, killed),
        (2, resumed),
    ],
}


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    outcome = {phase.__name__: run_ranks(count, phase, folder) for count, phase in PHASES[scenario]}
    (folder / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
