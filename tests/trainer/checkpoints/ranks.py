"""Ranks that save and load: `python -m tests.trainer.checkpoints.ranks SCENARIO FOLDER`, from which tests read.

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

from tests.trainer.checkpoints.states import SHAPE, Net, place, state_of, stepped
from trainer.checkpoints import Checkpoints, State, entries, files, sharing
from trainer.export.weights import export_model
from trainer.storage import open_storage

Phase = Callable[[Path, int], None]


def ranks(number: int, phase: Phase, folder: Path) -> list[int]:
    """Exit statuses of so many ranks; a killed one's is its signal's, negative."""
    store = folder / f"store-{phase.__name__}"
    children = []
    for rank in range(number):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=number)
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


def here(folder: Path, **config: Any) -> Checkpoints:
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return place(folder, group, **config)


def counted(folder: Path, name: str) -> None:
    """From now on each entry that this rank reads is a line of a file; the smallest is worth sharing."""
    sharing._SMALL = 0
    real = entries._read

    def read(stream: Any, content: memoryview, object_: str) -> None:
        with (folder / f"{name}-{dist.get_rank()}.reads").open("a") as lines:
            lines.write(f"{object_} {stream.tell()} {len(content)}\n")
        real(stream, content, object_)

    entries._read = read  # type: ignore[assignment]


def sharded(mesh: DeviceMesh, seed: int) -> State:
    torch.manual_seed(seed)
    net = Net()
    for block in net.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    state = state_of(net, seed, replicas=mesh.get_group(0) if mesh.ndim == 2 else None)
    torch.manual_seed(seed + dist.get_rank())
    stepped(net, state.optimizer, 8)
    return state


def fsdp(folder: Path, rank: int) -> None:
    """Four ranks, each with a quarter."""
    with here(folder / "fsdp") as checkpoints:
        state = sharded(init_device_mesh("cpu", (4,)), 3)
        checkpoints.save(state)
        checkpoints.wait()
    export_model(state.model, SHAPE, open_storage(str(folder / "results"), "X"), world(), limit=600)


def ddp(folder: Path, rank: int) -> None:
    """Two ranks that hold the same."""
    torch.manual_seed(1 + rank)
    net = Net()
    state = state_of(net, replicas=world())
    counted(folder, "ddp")
    with here(folder / "fsdp") as checkpoints:
        checkpoints.resume(state)
        generator = torch.get_rng_state()
    with here(folder / "ddp") as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()
    torch.save({"state": net.state_dict(), "generator": generator}, folder / f"ddp-{rank}.pt")


def hsdp(folder: Path, rank: int) -> None:
    """Two pairs of ranks, each rank with a half."""
    state = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), 9)
    counted(folder, "hsdp")
    with here(folder / "ddp") as checkpoints:
        checkpoints.resume(state)
    with here(folder / "hsdp", asynchronous=False) as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()


def pipeline(folder: Path, rank: int) -> None:
    """Two stages, which begin from what one model was."""
    torch.manual_seed(rank)
    state = state_of(Net(blocks=(rank,)))
    with here(folder / "ddp") as checkpoints:
        checkpoints.resume(state)
    with here(folder / "pipeline") as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()
    export_model(state.model, SHAPE, open_storage(str(folder / "stages"), "X"), world())


def damaged(folder: Path, rank: int) -> None:
    """One rank's file of the newest is garbage: all ranks pass it over."""
    state = sharded(init_device_mesh("cpu", (2,)), 5)
    with here(folder / "damaged") as checkpoints:
        for step in (1, 2):
            state.progress.step = step
            checkpoints.save(state)
        checkpoints.wait()
        if rank == 0:
            broken = folder / "damaged/step-00000002/__1_0.distcp"
            broken.write_bytes(os.urandom(broken.stat().st_size))
        dist.barrier()
        checkpoints.resume(state)
    (folder / f"damaged-{rank}").write_text(str(state.progress.step))


def saved_whole(folder: Path, steps: tuple[int, ...]) -> None:
    """By ranks that hold the same."""
    torch.manual_seed(4)
    net = Net()
    state = state_of(net, replicas=world())
    stepped(net, state.optimizer, 8)
    with here(folder) as checkpoints:
        for step in steps:
            state.progress.step = step
            checkpoints.save(state)
        checkpoints.wait()


def damaged_for_all(folder: Path, rank: int) -> None:
    """A byte of what one rank reads for both was flipped."""
    saved_whole(folder / "shared", (1, 2))
    entry = max(files.read_metadata(str(folder / "shared/step-00000002")).storage_data.values(), key=lambda e: e.length)
    if rank == 0:
        with (folder / "shared/step-00000002" / entry.relative_path).open("r+b") as stream:
            stream.seek(entry.offset + entry.length // 2)
            (byte,) = stream.read(1)
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte ^ 1]))
    dist.barrier()
    sharing._SMALL = 0
    state = sharded(init_device_mesh("cpu", (2,)), 5)
    with here(folder / "shared") as checkpoints:
        checkpoints.resume(state)
    (folder / f"shared-{rank}").write_text(str(state.progress.step))


def moved(state: State, source: Path, target: Path) -> None:
    """Load the newest checkpoint of one folder, and save what was loaded in another."""
    with here(source) as checkpoints:
        checkpoints.resume(state)
    with here(target) as checkpoints:
        checkpoints.save(state)
        checkpoints.wait()


def away(folder: Path, rank: int) -> None:
    """The storage fails one rank in the midst of what it reads for both, and then answers again."""
    saved_whole(folder / "away", (3,))
    sharing._SMALL = 0
    state = sharded(init_device_mesh("cpu", (2,)), 5)
    real_agree, real_read, reads = sharing._agree, entries._read, 0

    def agree(*given: Any) -> Any:
        if rank == 1:
            entries._read = read  # type: ignore[assignment]
        return real_agree(*given)

    def read(*given: Any) -> None:
        nonlocal reads
        reads += 1
        if reads == 4:  # the first is of this rank's own random generator
            raise ConnectionResetError("no answer")
        real_read(*given)

    sharing._agree = agree  # type: ignore[assignment]
    moved(state, folder / "away", folder / "back")
    (folder / f"away-{rank}").write_text(str(reads > 4))


def full(folder: Path, rank: int) -> None:
    """One rank fails to take what another has handed it, which it finds when the others are in the next round."""
    saved_whole(folder / "full", (3,))
    sharing._SMALL = 0
    state = sharded(init_device_mesh("cpu", (2,)), 5)
    real, calls = sharing._Rounds._fill, 0

    def fill(self: sharing._Rounds, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 3:
            raise ConnectionResetError("no answer")
        real(self, *given)

    sharing._Rounds._fill = fill  # type: ignore[method-assign, assignment]
    moved(state, folder / "full", folder / "taken")
    (folder / f"full-{rank}").write_text(str(rank == 1 and calls > 3))


def killed(folder: Path, rank: int) -> None:
    """One rank dies when it has written half of its file."""
    state = sharded(init_device_mesh("cpu", (2,)), 5)
    with here(folder / "killed") as checkpoints:
        state.progress.step = 1
        checkpoints.save(state)
        checkpoints.wait()
        if rank == 1:

            class Dying(FileSystemWriter):
                def write_data(self, plan: Any, planner: Any) -> Any:
                    super().write_data(plan, planner)
                    os.kill(os.getpid(), signal.SIGKILL)

            files.FileSystemWriter = Dying  # type: ignore[attr-defined]
        state.progress.step = 2
        checkpoints.save(state)
        checkpoints.wait()


def resumed(folder: Path, rank: int) -> None:
    """Two new ranks after it."""
    state = sharded(init_device_mesh("cpu", (2,)), 6)
    with here(folder / "killed") as checkpoints:
        checkpoints.resume(state)
    (folder / f"resumed-{rank}").write_text(str(state.progress.step))


PHASES: dict[str, list[tuple[int, Phase]]] = {
    "layouts": [(4, fsdp), (2, ddp), (4, hsdp), (2, pipeline)],
    "failures": [(2, damaged), (2, damaged_for_all), (2, away), (2, full), (2, killed), (2, resumed)],
}


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    outcome = {phase.__name__: ranks(number, phase, folder) for number, phase in PHASES[scenario]}
    (folder / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
