"""The training loop, top to bottom: data-parallel AdamW over bytes, resumed from the newest complete checkpoint."""

import math
import os
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contract.base import InputError, Problem
from contract.metrics import MetricLine
from contract.training import OptimizerConfig, TrainerConfig
from trainer.checkpoint import Checkpoints, Progress, State
from trainer.data import Tokens, open_dataset, share
from trainer.metrics import Metrics, require_finite
from trainer.model import Transformer
from trainer.results import results_of
from trainer.settings import Environment
from trainer.storage import open_storage

_CHECKPOINT_TIMEOUT = timedelta(minutes=30)  # of one rank's share: it outlasts a hung collective of training by far


def train(config: TrainerConfig, environment: Environment) -> None:
    """Run the job to its last step. Raises InputError for what the user can mend, before the first step."""
    begun = time.monotonic()
    rank, world_size = environment.rank, environment.world_size
    device = choose_device(config, environment)

    results_storage = open_storage(environment.results_uri, "RESULTS_URI")
    if rank == 0:
        results_storage.require(make=True)
        open_storage(environment.checkpoint_uri, "CHECKPOINT_URI").require(make=True)
    data, held_out = open_dataset(
        environment.data_uri,
        environment.cache_dir,
        length=config.model.sequence_length,
        vocabulary=config.model.vocabulary,
        seed=config.seed,
    )

    group = join(config, environment, device)
    torch.manual_seed(config.seed)  # the same weights everywhere
    bare = Transformer(config.model).to(device)
    torch.manual_seed(config.seed + 1 + rank)  # from here on each rank draws for itself
    model = parallel(bare, device)
    optimizer = make_optimizer(bare, config.optimizer)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")

    # The first backward pass decides how gradients share buckets, and with it the order in which ranks are summed. It
    # is spent here, so that the first step after a resume adds up as the same step of an unbroken run does.
    with autocast:
        model(*data.batch(range(config.micro_batch_size), device)).backward()
    optimizer.zero_grad()

    checkpoints = Checkpoints(environment.checkpoint_uri, group)
    state = State(model=bare, optimizer=optimizer, progress=Progress(), shape=config.model)
    progress = state.progress
    origin = resume(state, checkpoints, environment, group, config.steps)
    accumulation = config.accumulation(world_size)
    tokens = config.batch_size * config.model.sequence_length
    validation_loss: float | None = None

    with Metrics(environment.metrics_dir, results_storage, config.steps) if rank == 0 else nullcontext() as metrics:
        if metrics:
            parameters = sum(parameter.numel() for parameter in bare.parameters())
            print(
                f"{parameters:,} parameters, {len(data):,} samples of {config.model.sequence_length} tokens,"
                f" {world_size} x {device.type}, {accumulation} micro-batches a step and rank,"
                f" {f'resumed from {origin}' if origin else 'from the beginning'}",
                flush=True,
            )

        while progress.step < config.steps:
            started = time.perf_counter()
            step = progress.step + 1
            rate = learning_rate(step, config.steps, config.optimizer)
            for parameters_group in optimizer.param_groups:
                parameters_group["lr"] = rate

            # Beside the loss travels whether any node asks for a checkpoint now: all ranks hear it at the same step.
            summed = torch.tensor([0.0, float(environment.checkpoint_request.exists())], device=device)
            shares = share(progress.consumed, rank, world_size, config.micro_batch_size, config.batch_size)
            for number, positions in enumerate(shares, start=1):
                # Gradients meet on the last micro-batch only.
                with model.no_sync() if number < accumulation else nullcontext():
                    with autocast:
                        loss = model(*data.batch(positions, device)) / accumulation
                    loss.backward()
                summed[0] += loss.detach()

            dist.all_reduce(summed)  # beside the mean gradient, which is DDP's, the mean loss
            # Every rank holds the whole mean gradient: its own norm is the global one.
            norm = nn.utils.clip_grad_norm_(bare.parameters(), config.optimizer.clip_norm)
            mean_loss, asked, gradient_norm = torch.cat([summed / world_size, norm.unsqueeze(0)]).tolist()
            require_finite(step, mean_loss, gradient_norm)
            optimizer.step()
            optimizer.zero_grad()

            progress.step = step
            progress.consumed += config.batch_size
            progress.last_loss = mean_loss
            if step == 1:
                progress.first_loss = mean_loss
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started

            last = step == config.steps
            evaluated = last or step % config.eval_every == 0
            validation_loss = held_out_loss(model, held_out, config, environment, device) if evaluated else None
            if metrics:
                metrics.write(
                    MetricLine(
                        time=time.time(),
                        attempt=environment.attempt,
                        step=step,
                        loss=mean_loss,
                        validation_loss=validation_loss,
                        learning_rate=rate,
                        gradient_norm=gradient_norm,
                        consumed=progress.consumed,
                        tokens_per_second=tokens / seconds,
                        step_seconds=seconds,
                    )
                )
            if last or asked or step % config.checkpoint_every == 0:
                uri = checkpoints.save(state)
                environment.checkpoint_request.unlink(missing_ok=True)  # the asker's sign that it is saved
                if metrics:
                    print(f"saved {uri}", flush=True)
                    if not last:
                        publish(metrics)

        if validation_loss is None:  # resumed after the last step
            validation_loss = held_out_loss(model, held_out, config, environment, device)
        if metrics:
            metrics.publish()
            results = results_of(
                config,
                environment,
                progress,
                validation_loss=validation_loss,
                seconds=time.monotonic() - begun,
                parameters=parameters,
                checkpoints=checkpoints.complete(),
            )
            results_storage.write("results.json", results.model_dump_json(indent=1).encode())
            print(f"done: loss {progress.first_loss:.4f} -> {progress.last_loss:.4f}", flush=True)
    dist.destroy_process_group()


def choose_device(config: TrainerConfig, environment: Environment) -> torch.device:
    """This process's GPU, or the CPU with its share of the cores. What runs there gives the same bits every time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(config.threads or max(1, cores // environment.local_world_size))
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a costly debugging aid
    if not torch.cuda.is_available():
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    count = torch.cuda.device_count()
    if environment.local_rank >= count:
        why = f"this node has {count} GPUs, and every process needs one of its own"
        fix = f"Start {count} processes on it, or hide the GPUs with CUDA_VISIBLE_DEVICES="
        raise InputError([Problem(key="LOCAL_RANK", value=environment.local_rank, why=why, fix=fix)])
    device = torch.device("cuda", environment.local_rank)
    torch.cuda.set_device(device)
    return device


def join(config: TrainerConfig, environment: Environment, device: torch.device) -> dist.ProcessGroup:
    """Meet the other ranks. Returns the group for checkpoints: on the CPU, where one rank may be slower than others."""
    timeout = timedelta(seconds=config.timeout_seconds)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if environment.world_size == 1 and "MASTER_ADDR" not in os.environ:
        alone = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not by name
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    group = dist.new_group(backend="gloo", timeout=_CHECKPOINT_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group"
    return group


def parallel(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Gradients averaged over all ranks. The only buffer is the table of positions, the same everywhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers gets another name, not yet in older releases
        return DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW whose weight decay spares vectors: the norms' gains."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Linear to the peak at the end of the warm-up, then half a cosine down to the minimum at the last step."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * (1 + math.cos(math.pi * done)) / 2


def resume(
    state: State, checkpoints: Checkpoints, environment: Environment, group: dist.ProcessGroup, steps: int
) -> str | None:
    """Load the run's own newest checkpoint, or else that of the run it continues. Returns its URI, None at a beginning.

    Raises InputError where RESUME_URI has no complete checkpoint, or one that leaves nothing to do.
    """
    uri = checkpoints.newest()
    if uri is None and environment.resume_uri:
        uri = Checkpoints(environment.resume_uri, group, "RESUME_URI").newest()
        if uri is None:
            why, fix = "holds no complete checkpoint", "Name the checkpoints of a run that saved one, or leave it out"
            raise InputError([Problem(key="RESUME_URI", value=environment.resume_uri, why=why, fix=fix)])
        checkpoints.load(uri, state)
        if state.progress.step >= steps:
            why = f"its newest checkpoint has done {state.progress.step} steps, and this job ends after {steps}"
            raise InputError([Problem(key="RESUME_URI", value=uri, why=why, fix="Raise steps")])
    elif uri is not None:
        checkpoints.load(uri, state)
    return uri


@torch.no_grad()
def held_out_loss(
    model: nn.Module, data: Tokens, config: TrainerConfig, environment: Environment, device: torch.device
) -> float:
    """Mean loss over all ranks on the same held-out samples every time, nats per token."""
    per_rank = config.micro_batch_size * config.eval_batches
    batches = share(
        0, environment.rank, environment.world_size, config.micro_batch_size, per_rank * environment.world_size
    )
    summed = torch.zeros((), device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        for positions in batches:
            summed += model(*data.batch(positions, device))
    dist.all_reduce(summed)
    return float(summed) / (len(batches) * environment.world_size)


def publish(metrics: Metrics) -> None:
    """Copy the TensorBoard events, or say why not: the next copy holds these too, and training goes on."""
    try:
        metrics.publish()
    except OSError as error:
        print(f"TensorBoard events not copied yet: {error}", flush=True)
