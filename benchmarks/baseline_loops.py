"""Two baseline training loops with the trainer's model: `torchrun -m benchmarks.baseline_loops KIND FILE`.

`plain` follows PyTorch's tutorials: DistributedDataParallel, or fully_shard per block, a DataLoader, all logits in
memory. `nanogpt` follows nanoGPT: random windows of a memory map, prefetch of the next batch during computation, fused
AdamW, torch.compile on a GPU. With FSDP `nanogpt` has the design of torchtitan: fully_shard and torch.compile for each
block. benchmarks/trainer.py starts them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from trainer.models.decoder import Decoder
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig
from trainyard.models.dataset import DATASET, INDEX, TokenDataset


class Windows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, tokens: np.ndarray, length: int) -> None:
        self._tokens, self._length = tokens, length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return window(self._tokens, index * self._length, self._length)


def window(tokens: np.ndarray, start: int, length: int) -> tuple[Tensor, Tensor]:
    row = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))
    return row[:-1], row[1:]


def sequential_batches(tokens: np.ndarray, config: TrainerConfig, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    samples = Windows(tokens, length)
    epoch = 0
    while True:
        sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(samples)
        sampler.set_epoch(epoch)
        yield from DataLoader(samples, config.micro_batch_size, sampler=sampler, drop_last=True)
        epoch += 1


def random_batches(tokens: np.ndarray, config: TrainerConfig, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        starts = torch.randint(len(tokens) - length - 1, (config.micro_batch_size,)).tolist()
        rows = [window(tokens, start, length) for start in starts]
        yield torch.stack([row for row, _ in rows]), torch.stack([row for _, row in rows])


def parallelize(base_model: Decoder, config: TrainerConfig, device: torch.device, *, compiled: bool) -> nn.Module:
    if config.parallel.data == "fsdp":
        no_autocast = config.precision == "fp32"
        policy = MixedPrecisionPolicy() if no_autocast else MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in base_model.layers.values():
            if compiled:
                block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(base_model, mp_policy=policy)
        return base_model
    whole: nn.Module = torch.compile(base_model) if compiled else base_model  # type: ignore[assignment]
    return DistributedDataParallel(whole, device_ids=[device.index] if device.type == "cuda" else None)


@contextmanager
def gradient_sync(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Reduce gradients over ranks after the last micro-batch only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
        return
    assert isinstance(model, DistributedDataParallel)
    with nullcontext() if last else model.no_sync():
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("plain", "nanogpt"))
    parser.add_argument("config", type=Path)
    arguments = parser.parse_args()
    config = TrainerConfig.model_validate_json(arguments.config.read_bytes())
    shape = config.model
    assert isinstance(shape, DecoderConfig)
    nanogpt = arguments.kind == "nanogpt"
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(config.threads or 1)

    torch.manual_seed(config.seed)
    base_model = Decoder(shape, loss_chunk_tokens=None)
    for name, module in base_model.named_modules():
        base_model.initialize(name, module)
    base_model.to(device)
    model = parallelize(base_model, config, device, compiled=nanogpt and on_gpu)
    optimizer = torch.optim.AdamW(
        base_model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True if nanogpt else None
    )

    folder = Path(os.environ["DATA_URI"])
    index = DATASET.validate_json((folder / INDEX).read_bytes())
    assert isinstance(index, TokenDataset)
    tokens = np.memmap(folder / index.train[0].key, dtype=index.dtype, mode="r")
    torch.manual_seed(config.seed + dist.get_rank())
    batches = (random_batches if nanogpt else sequential_batches)(tokens, config, shape.sequence_length)
    accumulation = config.batch_size // (config.micro_batch_size * dist.get_world_size())
    no_autocast = config.precision == "fp32" or config.parallel.data == "fsdp"  # FSDP casts itself

    def next_batch() -> tuple[Tensor, Tensor]:
        inputs, targets = next(batches)
        if nanogpt and on_gpu:
            return (
                inputs.pin_memory().to(device, non_blocking=True),
                targets.pin_memory().to(device, non_blocking=True),
            )
        return inputs.to(device), targets.to(device)

    inputs, targets = next_batch()
    started = time.perf_counter()
    for _ in range(config.steps):
        for micro in range(accumulation):
            with gradient_sync(model, last=micro + 1 == accumulation):
                with nullcontext() if no_autocast else torch.autocast(device.type, torch.bfloat16):
                    loss = model(inputs, targets) / accumulation
                inputs, targets = next_batch()
                loss.backward()
        nn.utils.clip_grad_norm_(base_model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        now = time.perf_counter()  # includes the time between steps
        if dist.get_rank() == 0:
            print(json.dumps({"step_seconds": now - started}), flush=True)
        started = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
