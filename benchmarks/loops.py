"""Two training loops that others write, on our model: `torchrun -m benchmarks.loops KIND FILE`.

`plain` is PyTorch's tutorials: DistributedDataParallel, or fully_shard of each block, a DataLoader, whole logits.
`nanogpt` has nanoGPT's design: random windows of a memory map, the next batch fetched while the device is busy, fused
AdamW, torch.compile on a GPU. benchmarks/trainer.py starts them.
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


def in_order(tokens: np.ndarray, config: TrainerConfig, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    samples = Windows(tokens, length)
    epoch = 0
    while True:
        sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(samples)
        sampler.set_epoch(epoch)
        yield from DataLoader(samples, config.micro_batch_size, sampler=sampler, drop_last=True)
        epoch += 1


def at_random(tokens: np.ndarray, config: TrainerConfig, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        starts = torch.randint(len(tokens) - length - 1, (config.micro_batch_size,)).tolist()
        rows = [window(tokens, start, length) for start in starts]
        yield torch.stack([row for row, _ in rows]), torch.stack([row for _, row in rows])


def spread(bare: Decoder, config: TrainerConfig, device: torch.device, *, compiled: bool) -> nn.Module:
    if config.parallel.data == "fsdp":
        precise = config.precision == "fp32"
        policy = MixedPrecisionPolicy() if precise else MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in bare.blocks.values():
            if compiled:
                block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(bare, mp_policy=policy)
        return bare
    whole: nn.Module = torch.compile(bare) if compiled else bare  # type: ignore[assignment]
    return DistributedDataParallel(whole, device_ids=[device.index] if device.type == "cuda" else None)


@contextmanager
def together(model: nn.Module, *, last: bool) -> Iterator[None]:
    """Gradients meet those of other ranks after the last micro-batch only."""
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
    given = parser.parse_args()
    config = TrainerConfig.model_validate_json(given.config.read_bytes())
    shape = config.model
    assert isinstance(shape, DecoderConfig)
    nanogpt = given.kind == "nanogpt"
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_num_threads(config.threads or 1)

    torch.manual_seed(config.seed)
    bare = Decoder(shape, loss_chunk=None)
    for name, module in bare.named_modules():
        bare.initialize(name, module)
    bare.to(device)
    model = spread(bare, config, device, compiled=nanogpt and on_gpu)
    optimizer = torch.optim.AdamW(
        bare.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True if nanogpt else None
    )

    folder = Path(os.environ["DATA_URI"])
    index = DATASET.validate_json((folder / INDEX).read_bytes())
    assert isinstance(index, TokenDataset)
    tokens = np.memmap(folder / index.train[0].key, dtype=index.dtype, mode="r")
    torch.manual_seed(config.seed + dist.get_rank())
    batches = (at_random if nanogpt else in_order)(tokens, config, shape.sequence_length)
    accumulation = config.batch_size // (config.micro_batch_size * dist.get_world_size())
    precise = config.precision == "fp32" or config.parallel.data == "fsdp"  # which casts by itself

    def moved() -> tuple[Tensor, Tensor]:
        inputs, successors = next(batches)
        if nanogpt and on_gpu:
            return (
                inputs.pin_memory().to(device, non_blocking=True),
                successors.pin_memory().to(device, non_blocking=True),
            )
        return inputs.to(device), successors.to(device)

    inputs, successors = moved()
    began = time.perf_counter()
    for _ in range(config.steps):
        for micro in range(accumulation):
            with together(model, last=micro + 1 == accumulation):
                with nullcontext() if precise else torch.autocast(device.type, torch.bfloat16):
                    loss = model(inputs, successors) / accumulation
                inputs, successors = moved()
                loss.backward()
        nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        now = time.perf_counter()  # from step to step
        if dist.get_rank() == 0:
            print(json.dumps({"step_seconds": now - began}), flush=True)
        began = now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
