"""Train a small language model with DeepSpeed ZeRO-2: gradients and optimizer state are sharded over GPUs.

It saves a checkpoint every --checkpoint-every steps and on request, resumes from the newest complete checkpoint, and
writes results.json. Each step is one line of JSON on stdout.
"""

import argparse
import json
import os
import sys
import time
from importlib.metadata import version

import torch
import torch.distributed as dist
from data import InfiniteShuffle, Samples, download_shards
from model import ByteModel
from storage import CHECKPOINT, CHECKPOINT_REQUEST, download_checkpoint, upload_checkpoint, write_results
from torch.utils.data import DataLoader


def deepspeed_config(batch_size: int) -> dict[str, object]:
    """Return the settings; the keys are documented in "DeepSpeed Configuration JSON"."""
    return {
        "train_micro_batch_size_per_gpu": batch_size,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": torch.cuda.is_available()},
        "zero_allow_untested_optimizer": True,  # torch's AdamW instead of DeepSpeed's, which is compiled at run time
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per process")
    parser.add_argument("--length", type=int, default=128, help="bytes per sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    if not torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR") != "cpu":
        print("this job needs an NVIDIA GPU for each process (to try it on CPUs, see README.md)", file=sys.stderr)
        sys.exit(2)
    import deepspeed  # not at the top, since the import searches for GPUs and prints

    deepspeed.init_distributed()  # from torchrun's environment variables
    rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    if local == 0:
        download_shards()
    dist.barrier()
    samples = Samples(download_shards(), arguments.length)
    torch.manual_seed(7)
    model = ByteModel(arguments.length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config=deepspeed_config(arguments.batch_size),
    )
    progress = {"step": 0, "consumed": 0, "first_loss": float("nan"), "last_loss": float("nan")}
    if checkpoint := download_checkpoint():
        _, progress = engine.load_checkpoint(str(checkpoint))
    started_at = progress["step"]

    order = InfiniteShuffle(len(samples), progress["consumed"], rank, world)  # starts at the run's progress
    batches = iter(DataLoader(samples, arguments.batch_size, sampler=order))
    while progress["step"] < arguments.steps:
        started = time.perf_counter()
        sample = next(batches).to(engine.device)
        loss = engine(sample)
        engine.backward(loss)
        engine.step()

        # One reduction for the mean loss and for the checkpoint requests of all nodes.
        values = torch.stack(
            [loss.detach().float(), torch.tensor(float(CHECKPOINT_REQUEST.exists()), device=engine.device)]
        )
        dist.all_reduce(values)
        loss_sum, save_requested = values.tolist()
        progress["last_loss"] = loss_sum / world
        if progress["step"] == 0:
            progress["first_loss"] = progress["last_loss"]
        progress["step"] += 1
        progress["consumed"] += arguments.batch_size * world
        if rank == 0:
            rate = sample.shape[0] * arguments.length * world / (time.perf_counter() - started)
            line = {"step": progress["step"], "loss": progress["last_loss"], "tokens_per_second": round(rate)}
            print(json.dumps(line), flush=True)
        if save_requested or progress["step"] % arguments.checkpoint_every == 0 or progress["step"] == arguments.steps:
            engine.save_checkpoint(str(CHECKPOINT), client_state=progress)
            upload_checkpoint(progress["step"])

    if rank == 0:
        write_results(
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
