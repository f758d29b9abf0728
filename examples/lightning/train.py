"""A small language model by Lightning: data parallel, on GPUs or on CPUs, under torchrun.

It saves every --checkpoint-every steps and when it is asked to, goes on from the newest complete checkpoint, and leaves
results.json. Each step is one line of JSON on stdout.
"""

import argparse
import json
import os
import time
from importlib.metadata import version
from typing import Any

import lightning
import torch
import torch.distributed as dist
from data import Order, Samples, bring
from model import ByteModel
from storage import CHECKPOINT, REQUEST, publish, restore, tell
from torch import Tensor
from torch.utils.data import DataLoader

FILE = "lightning.ckpt"


class Learner(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.model = ByteModel(length)

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        return self.model(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Bytes(lightning.LightningDataModule):
    """Batches of this rank. What has been consumed is part of the checkpoint, and Lightning loads it before it asks."""

    def __init__(self, length: int, batch_size: int) -> None:
        super().__init__()
        self.length, self.batch_size, self.consumed = length, batch_size, 0

    def prepare_data(self) -> None:
        bring()  # on one rank of each node, before the others go on

    def train_dataloader(self) -> DataLoader[Tensor]:
        samples = Samples(bring(), self.length)
        order = Order(len(samples), self.consumed, dist.get_rank(), dist.get_world_size())
        return DataLoader(samples, self.batch_size, sampler=order)

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.consumed = state_dict["consumed"]


class Steps(lightning.Callback):
    """After each step: the mean loss, a line, and a checkpoint where it is time."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.first_loss, self.last_loss, self.began, self.started_at = float("nan"), float("nan"), 0.0, 0

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.started_at = trainer.global_step

    def on_train_batch_start(self, *_: Any) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Tensor, *_: Any) -> None:
        # One small sum tells all ranks the mean loss, and whether any node asks for a checkpoint.
        told = torch.stack([outputs["loss"].detach(), torch.tensor(float(REQUEST.exists()), device=module.device)])
        summed, asked = trainer.strategy.reduce(told, reduce_op="sum").tolist()
        self.last_loss = summed / trainer.world_size
        step, samples = trainer.global_step, batch.shape[0] * trainer.world_size
        if step == 1:
            self.first_loss = self.last_loss
        trainer.datamodule.consumed += samples
        if trainer.is_global_zero:
            rate = samples * (batch.shape[1] - 1) / (time.perf_counter() - self.began)
            print(json.dumps({"step": step, "loss": self.last_loss, "tokens_per_second": round(rate)}), flush=True)
        if asked or step % self.every == 0 or step == trainer.max_steps:
            trainer.save_checkpoint(CHECKPOINT / FILE)
            publish(step)

    def state_dict(self) -> dict[str, Any]:
        return {"first_loss": self.first_loss, "last_loss": self.last_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one process")
    parser.add_argument("--length", type=int, default=128, help="bytes of a sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    # Lightning would do it later; but what to go on from, all ranks must know now.
    if gpus := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpus else "gloo")
    lightning.seed_everything(7)
    learner, steps = Learner(arguments.length), Steps(arguments.checkpoint_every)
    samples = Bytes(arguments.length, arguments.batch_size)
    trainer = lightning.Trainer(
        accelerator="gpu" if gpus else "cpu",
        precision="bf16-mixed" if gpus else "32-true",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=arguments.steps,
        gradient_clip_val=1.0,
        callbacks=[steps],  # it makes the checkpoints
        use_distributed_sampler=False,  # Order takes this rank's samples itself
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    found = restore()
    trainer.fit(learner, samples, ckpt_path=found / FILE if found else None, weights_only=True)

    if trainer.is_global_zero:
        tell(
            {
                "framework": f"lightning {version('lightning')}",
                "torch": torch.__version__,
                "device": learner.device.type,
                "world_size": trainer.world_size,
                "parameters": sum(one.numel() for one in learner.parameters()),
                "started_at": steps.started_at,
                "steps": trainer.global_step,
                "samples": samples.consumed,
                "first_loss": steps.first_loss,
                "last_loss": steps.last_loss,
            }
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
