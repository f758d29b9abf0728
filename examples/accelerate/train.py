"""A small language model by Hugging Face Accelerate: data parallel, on GPUs or on CPUs, under torchrun.

It saves every --checkpoint-every steps and when it is asked to, goes on from the newest complete checkpoint, and leaves
results.json. Each step is one line of JSON on stdout.
"""

import argparse
import json
import time
from importlib.metadata import version

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from data import Order, Samples, bring
from model import ByteModel
from storage import CHECKPOINT, REQUEST, publish, restore, tell
from torch.utils.data import DataLoader


class Progress:
    """What a checkpoint keeps beside weights, optimizer and generators."""

    def __init__(self) -> None:
        self.step, self.consumed, self.first_loss, self.last_loss = 0, 0, float("nan"), float("nan")

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one process")
    parser.add_argument("--length", type=int, default=128, help="bytes of a sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    # Without cpu=True it takes no notice, on a machine without GPUs, that torchrun has started other processes.
    gpus = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not gpus, mixed_precision="bf16" if gpus else "no")
    set_seed(7)
    with accelerator.local_main_process_first():
        samples = Samples(bring(), arguments.length)
    model = ByteModel(arguments.length)
    parameters = sum(one.numel() for one in model.parameters())
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if found := restore():
        accelerator.load_state(str(found))
    started_at = progress.step

    # The order begins where the run is. Accelerate deals its batches out to the processes, each on its device.
    order = Order(len(samples), progress.consumed)
    batches = iter(accelerator.prepare(DataLoader(samples, arguments.batch_size, sampler=order)))
    while progress.step < arguments.steps:
        began = time.perf_counter()
        sample = next(batches)
        loss = model(sample)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

        # One small sum tells all ranks the mean loss, and whether any node asks for a checkpoint.
        told = torch.stack([loss.detach(), loss.new_tensor(float(REQUEST.exists()))])
        summed, asked = accelerator.reduce(told, "sum").tolist()
        progress.last_loss = summed / accelerator.num_processes
        if progress.step == 0:
            progress.first_loss = progress.last_loss
        progress.step += 1
        progress.consumed += arguments.batch_size * accelerator.num_processes
        if accelerator.is_main_process:
            rate = sample.shape[0] * arguments.length * accelerator.num_processes / (time.perf_counter() - began)
            line = {"step": progress.step, "loss": progress.last_loss, "tokens_per_second": round(rate)}
            print(json.dumps(line), flush=True)
        if asked or progress.step % arguments.checkpoint_every == 0 or progress.step == arguments.steps:
            accelerator.save_state(str(CHECKPOINT), safe_serialization=True)
            publish(progress.step)

    if accelerator.is_main_process:
        tell(
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
