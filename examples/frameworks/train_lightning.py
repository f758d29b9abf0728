"""Train a small language model with Lightning: data parallel, on GPUs or CPUs, under torchrun.

It saves a checkpoint every --checkpoint-every steps and on request, resumes from the newest complete checkpoint, and
writes results.json. Each step is one line of JSON on stdout.
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
from data import InfiniteShuffle, Samples, download_shards
from model import ByteModel
from storage import CHECKPOINT, CHECKPOINT_REQUEST, download_checkpoint, upload_checkpoint, write_results
from torch import Tensor
from torch.utils.data import DataLoader

FILE = "lightning.ckpt"


class LanguageModel(lightning.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.model = ByteModel(length)

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        return self.model(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class BytesDataModule(lightning.LightningDataModule):
    """Batches of this rank. Checkpoints include the number of consumed samples, loaded before the first batch."""

    def __init__(self, length: int, batch_size: int) -> None:
        super().__init__()
        self.length, self.batch_size, self.consumed = length, batch_size, 0

    def prepare_data(self) -> None:
        download_shards()  # runs on one rank of each node before the others continue

    def train_dataloader(self) -> DataLoader[Tensor]:
        samples = Samples(download_shards(), self.length)
        order = InfiniteShuffle(len(samples), self.consumed, dist.get_rank(), dist.get_world_size())
        return DataLoader(samples, self.batch_size, sampler=order)

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.consumed = state_dict["consumed"]


class StepCallback(lightning.Callback):
    """Computes the mean loss, prints a line and saves due checkpoints after each step."""

    def __init__(self, interval_steps: int) -> None:
        self.interval_steps = interval_steps
        self.first_loss, self.last_loss, self.step_started, self.started_at = float("nan"), float("nan"), 0.0, 0

    def on_train_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.started_at = trainer.global_step

    def on_train_batch_start(self, *_: Any) -> None:
        self.step_started = time.perf_counter()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Tensor, *_: Any) -> None:
        # One reduction for the mean loss and for the checkpoint requests of all nodes.
        values = torch.stack(
            [outputs["loss"].detach(), torch.tensor(float(CHECKPOINT_REQUEST.exists()), device=module.device)]
        )
        loss_sum, save_requested = trainer.strategy.reduce(values, reduce_op="sum").tolist()
        self.last_loss = loss_sum / trainer.world_size
        step, samples = trainer.global_step, batch.shape[0] * trainer.world_size
        if step == 1:
            self.first_loss = self.last_loss
        trainer.datamodule.consumed += samples
        if trainer.is_global_zero:
            rate = samples * (batch.shape[1] - 1) / (time.perf_counter() - self.step_started)
            print(json.dumps({"step": step, "loss": self.last_loss, "tokens_per_second": round(rate)}), flush=True)
        if save_requested or step % self.interval_steps == 0 or step == trainer.max_steps:
            trainer.save_checkpoint(CHECKPOINT / FILE)
            upload_checkpoint(step)

    def state_dict(self) -> dict[str, Any]:
        return {"first_loss": self.first_loss, "last_loss": self.last_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per process")
    parser.add_argument("--length", type=int, default=128, help="bytes per sample")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    arguments = parser.parse_args()

    # Before Lightning does it: the choice of the checkpoint needs the process group.
    if gpus := torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpus else "gloo")
    lightning.seed_everything(7)
    module, steps = LanguageModel(arguments.length), StepCallback(arguments.checkpoint_every)
    datamodule = BytesDataModule(arguments.length, arguments.batch_size)
    trainer = lightning.Trainer(
        accelerator="gpu" if gpus else "cpu",
        precision="bf16-mixed" if gpus else "32-true",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=arguments.steps,
        gradient_clip_val=1.0,
        callbacks=[steps],  # saves the checkpoints
        use_distributed_sampler=False,  # InfiniteShuffle selects this rank's samples
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = download_checkpoint()
    trainer.fit(module, datamodule, ckpt_path=checkpoint / FILE if checkpoint else None, weights_only=True)

    if trainer.is_global_zero:
        write_results(
            {
                "framework": f"lightning {version('lightning')}",
                "torch": torch.__version__,
                "device": module.device.type,
                "world_size": trainer.world_size,
                "parameters": sum(parameter.numel() for parameter in module.parameters()),
                "started_at": steps.started_at,
                "steps": trainer.global_step,
                "samples": datamodule.consumed,
                "first_loss": steps.first_loss,
                "last_loss": steps.last_loss,
            }
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
