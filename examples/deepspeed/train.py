"""A small language model by DeepSpeed ZeRO-2: gradients and optimizer state are split over GPUs, under torchrun.

It saves every --checkpoint-every steps and when it is asked to, goes on from the newest complete checkpoint, and leaves
results.json. Each step is one line of JSON on stdout.
"""

import argparse
import json
import os
import sys
import time
from importlib.metadata import version

import torch
import torch.distributed as dist
from data import Order, Samples, bring
from model import ByteModel
from storage import CHECKPOINT, REQUEST, publish, restore, tell
from torch.utils.data import DataLoader


def configuration(batch_size: int) -> dict[str, object]:
    """Read "DeepSpeed Configuration JSON" in its documentation for the keys."""
    return {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": torch.cuda.is_available()},
        "zero_allow_untested_optimizer": True,  # torch's AdamW, where DeepSpeed would compile its own
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one process")
    parser.add_argument("--length", type=int, default=128, help="bytes of a sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    if not torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        print("this job needs an NVIDIA GPU for each process (to try it on CPUs: README.md)", file=sys.stderr)
        sys.exit(2)
    import deepspeed  # here, since it looks for GPUs and speaks at once

    deepspeed.init_distributed()  # of torchrun's variables
    rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    if local == 0:
        bring()
    dist.barrier()
    samples = Samples(bring(), arguments.length)
    torch.manual_seed(7)
    model = ByteModel(arguments.length)
    parameters = sum(one.numel() for one in model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config=configuration(arguments.batch_size),
    )
    progress = {"step": 0, "consumed": 0, "first_loss": float("nan"), "last_loss": float("nan")}
    if found := restore():
        _, progress = engine.load_checkpoint(str(found))
    started_at = progress["step"]

    order = Order(len(samples), progress["consumed"], rank, world)  # it begins where the run is
    batches = iter(DataLoader(samples, arguments.batch_size, sampler=order))
    while progress["step"] < arguments.steps:
        began = time.perf_counter()
        sample = next(batches).to(engine.device)
        loss = engine(sample)
        engine.backward(loss)
        engine.step()

        # One small sum tells all ranks the mean loss, and whether any node asks for a checkpoint.
        told = torch.stack([loss.detach().float(), torch.tensor(float(REQUEST.exists()), device=engine.device)])
        dist.all_reduce(told)
        summed, asked = told.tolist()
        progress["last_loss"] = summed / world
        if progress["step"] == 0:
            progress["first_loss"] = progress["last_loss"]
        progress["step"] += 1
        progress["consumed"] += arguments.batch_size * world
        if rank == 0:
            rate = sample.shape[0] * arguments.length * world / (time.perf_counter() - began)
            line = {"step": progress["step"], "loss": progress["last_loss"], "tokens_per_second": round(rate)}
            print(json.dumps(line), flush=True)
        if asked or progress["step"] % arguments.checkpoint_every == 0 or progress["step"] == arguments.steps:
            engine.save_checkpoint(str(CHECKPOINT), client_state=progress)
            publish(progress["step"])

    if rank == 0:
        tell(
            {
                "framework": f"deepspeed {version('deepspeed')}",
                "torch": torch.__version__,
                "device": engine.device.type,
                "world_size": world,
                "parameters": parameters,
                "started_at": started_at,
                "steps": progress["step"],
                "samples": progress["consumed"],
                "first_loss": progress["first_loss"],
                "last_loss": progress["last_loss"],
            }
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
