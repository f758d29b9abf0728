"""Train a small language model with Hugging Face Accelerate: data parallel, on GPUs or CPUs, under torchrun.

It saves a checkpoint every --checkpoint-every steps and on request, resumes from the newest complete checkpoint, and
writes results.json. Each step is one line of JSON on stdout.
"""

import argparse
import json
import time
from importlib.metadata import version

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from data import InfiniteShuffle, Samples, download_shards
from model import ByteModel
from storage import CHECKPOINT, CHECKPOINT_REQUEST, download_checkpoint, upload_checkpoint, write_results
from torch.utils.data import DataLoader


class Progress:
    """Progress of the run, saved in checkpoints with weights, optimizer state and random number generators."""

    def __init__(self) -> None:
        self.step, self.consumed, self.first_loss, self.last_loss = 0, 0, float("nan"), float("nan")

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per process")
    parser.add_argument("--length", type=int, default=128, help="bytes per sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    # Without cpu=True Accelerate ignores torchrun's processes on a machine without GPUs.
    gpus = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not gpus, mixed_precision="bf16" if gpus else "no")
    set_seed(7)
    with accelerator.local_main_process_first():
        samples = Samples(download_shards(), arguments.length)
    model = ByteModel(arguments.length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if checkpoint := download_checkpoint():
        accelerator.load_state(str(checkpoint))
    started_at = progress.step

    # The sampler starts at the run's progress. Accelerate distributes its batches over the processes.
    order = InfiniteShuffle(len(samples), progress.consumed)
    batches = iter(accelerator.prepare(DataLoader(samples, arguments.batch_size, sampler=order)))
    while progress.step < arguments.steps:
        started = time.perf_counter()
        sample = next(batches)
        loss = model(sample)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        # One reduction for the mean loss and for the checkpoint requests of all nodes.
        values = torch.stack([loss.detach(), loss.new_tensor(float(CHECKPOINT_REQUEST.exists()))])
        loss_sum, save_requested = accelerator.reduce(values, "sum").tolist()
        progress.last_loss = loss_sum / accelerator.num_processes
        if progress.step == 0:
            progress.first_loss = progress.last_loss
        progress.step += 1
        progress.consumed += arguments.batch_size * accelerator.num_processes
        if accelerator.is_main_process:
            rate = sample.shape[0] * arguments.length * accelerator.num_processes / (time.perf_counter() - started)
            line = {"step": progress.step, "loss": progress.last_loss, "tokens_per_second": round(rate)}
            print(json.dumps(line), flush=True)
        if save_requested or progress.step % arguments.checkpoint_every == 0 or progress.step == arguments.steps:
            accelerator.save_state(str(CHECKPOINT), safe_serialization=True)
            upload_checkpoint(progress.step)

    if accelerator.is_main_process:
        write_results(
            {
                "framework": f"accelerate {version('accelerate')}",
                "torch": torch.__version__,
                "device": accelerator.device.type,
                "world_size": accelerator.num_processes,
                "parameters": parameters,
                "started_at": started_at,
                "steps": progress.step,
                "samples": progress.consumed,
                "first_loss": progress.first_loss,
                "last_loss": progress.last_loss,
            }
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
