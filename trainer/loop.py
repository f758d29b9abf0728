"""The training loop, top to bottom: the parts are made, then one optimizer step after the other, then the results."""

import math
import time
from contextlib import ExitStack, closing

import torch
import torch.distributed as dist
from torch import nn

from trainer.checkpoints import Checkpoints, Progress, State
from trainer.data import open_data
from trainer.evaluation import average_buffers, held_out_loss
from trainer.export.finished import export, loss_of
from trainer.failures.memory import explained
from trainer.failures.peers import told_of_lost_peers
from trainer.failures.watch import EXPORT_SECONDS, PATIENCE, Watch, place_of
from trainer.models import build
from trainer.parallelism import passes_of, spread
from trainer.parallelism.gradients import global_norm, scale
from trainer.precision import Precision
from trainer.ranks import choose_device, join
from trainer.requests import Requests
from trainer.schedule import learning_rate, make_optimizer
from trainer.settings import Environment
from trainer.storage import open_storage
from trainer.telemetry.metrics import Metrics, require_finite
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.results import results_of
from trainer.telemetry.timing import Clock
from trainyard.base import InputError, Problem
from trainyard.config.training import TrainerConfig

TERMINATED = 128 + 15  # as a shell tells what SIGTERM has ended


def train(config: TrainerConfig, environment: Environment) -> None:
    """Run the job to its last step. Raises InputError for what the user can mend, before the first step."""
    begun = time.monotonic()
    rank, timeout = environment.rank, config.timeout_seconds
    layout = config.layout(environment.world_size, environment.local_world_size)

    with ExitStack() as stack:
        # All that the user may have got wrong is looked at before any rank waits for another.
        device = choose_device(config, environment)
        results = open_storage(environment.results_uri, "RESULTS_URI")
        if rank == 0:
            results.require(make=True)
            open_storage(environment.checkpoint_uri, "CHECKPOINT_URI").require(make=True)
            open_storage(str(environment.metrics_dir), "METRICS_DIR").require(make=True)
        data = open_data(config, environment, rank=layout.data_rank(rank), ranks=layout.data)
        stack.callback(data.close)
        model = build(config, layout.stage(rank))
        data.require_known(model.vocabulary)

        ranks = stack.enter_context(join(config, environment, device))
        where = place_of(device, environment.local_rank)
        watch = stack.enter_context(Watch(rank=rank, world_size=ranks.size, where=where, timeout_seconds=timeout))
        watch.reached(0, "setup", PATIENCE * timeout)
        stack.enter_context(explained(config, layout, device, where, model.parameters))
        progress = Progress()
        stack.enter_context(told_of_lost_peers(where, rank, lambda: progress.step))
        precision = Precision(config, device)
        loss_scale = precision.loss_scale
        module = spread(model, config, ranks, precision)  # model.module, or DistributedDataParallel around it
        passes = passes_of(module, config, ranks, precision)
        parameters = list(model.module.parameters())
        optimizer = make_optimizer(parameters, config.optimizer)
        torch.manual_seed(config.seed + 1 + rank)  # from here on each rank draws for itself
        passes.warm_up(next(data.held_out(1)))
        optimizer.zero_grad()

        state = State(
            model=model.module,
            optimizer=optimizer,
            progress=progress,
            shape=config.model.model_dump(mode="json"),
            order=data.order,
            batch_size=config.batch_size,
            scaler=loss_scale.state,
            replicas=ranks.replicas,
        )
        checkpoints = stack.enter_context(Checkpoints(environment.checkpoint_uri, ranks.checkpoints, config.checkpoint))
        origin = checkpoints.resume(state, environment.resume_uri)
        if origin and not checkpoints.own(origin):
            require_work(origin, progress.step, config.steps)

        requests, clock = Requests(environment), Clock(device)
        held_out = config.evaluation.batches * layout.accumulation  # micro-batches of each rank

        def leaves() -> bool:
            watch.reached(progress.step, "evaluation", PATIENCE * timeout)
            return requests.ended

        def evaluate() -> float | None:
            average_buffers(model.module, ranks)
            with closing(data.held_out(held_out)) as samples:
                return held_out_loss(module, passes, samples, config.evaluation.batches, ranks, leaves)

        profiler = Profiler(config.profile, environment, results, device)
        metrics = Metrics(config, environment, results, model, device) if rank == 0 else None
        if metrics:
            stack.enter_context(metrics)
            metrics.begin(origin)
        validation_loss: float | None = None

        batches = data.train(progress.consumed)
        began_at, started = progress.step, time.perf_counter()
        while progress.step < config.steps:
            step = progress.step + 1
            watch.reached(step, "training", PATIENCE * timeout if progress.step == began_at else None)
            with profiler.step(step):
                rate = learning_rate(step, config.steps, config.optimizer)
                for group in optimizer.param_groups:
                    group["lr"] = rate

                loss = passes.gradients(batches, clock)
                with clock.phase("optimizer"):
                    norm = global_norm(parameters, ranks.stages)
                    # Beside the loss travels what any rank is asked for: all hear it at the same step.
                    told = torch.cat([loss.reshape(1), requests.now(device)])
                    dist.all_reduce(told)
                    loss_sum, asked, ended, scaled_norm = torch.cat([told, norm.reshape(1)]).tolist()
                mean_loss, gradient_norm = loss_sum / layout.loss_ranks, scaled_norm / loss_scale.value
                finite = math.isfinite(mean_loss) and math.isfinite(gradient_norm)
                if not (finite or (math.isfinite(mean_loss) and loss_scale.may_skip)):  # a scale spoils no loss
                    require_finite(step, mean_loss, gradient_norm, rate)

                checkpoints.before_update()
                with clock.phase("optimizer"):
                    if finite:
                        clipping = min(1.0, config.optimizer.clip_norm / (gradient_norm + 1e-6))
                        scale(parameters, clipping / loss_scale.value)
                        optimizer.step()
                    optimizer.zero_grad()
                spent = clock.read()
            seconds = time.perf_counter() - started

            progress.advance(config.batch_size, mean_loss)
            last = step == config.steps
            validation_loss = None
            if last or step % config.evaluation.every == 0:
                validation_loss = evaluate()
                if validation_loss is None:
                    asked = ended = True
            started = time.perf_counter()  # the next step's: to tell of this one and to save it takes training's time
            if metrics:
                metrics.step(
                    progress,
                    validation_loss=validation_loss,
                    learning_rate=rate,
                    gradient_norm=gradient_norm if finite else None,
                    loss_scale=loss_scale.value if loss_scale.enabled else None,
                    skipped=not finite,
                    seconds=seconds,
                    spent=spent,
                    stalled=checkpoints.stalled(),
                )
            loss_scale.update(finite=finite)

            if last or asked or step % config.checkpoint.every == 0:
                watch.reached(step, "checkpoint", PATIENCE * timeout)
                average_buffers(model.module, ranks)
                requests.answered_by(checkpoints.save(state), asked=bool(asked))
            for uri in checkpoints.wait() if last or ended else checkpoints.poll():
                requests.saved(uri)
                if metrics:
                    metrics.saved(uri, publish=not last)
            if ended:
                if metrics:
                    metrics.finish()
                raise SystemExit(TERMINATED)

        if validation_loss is None:  # resumed after the last step
            validation_loss = evaluate()
            if validation_loss is None:
                raise SystemExit(TERMINATED)
        watch.reached(progress.step, "export", EXPORT_SECONDS)
        if metrics:
            metrics.finish()
            found = results_of(
                config,
                environment,
                progress,
                validation_loss=validation_loss,
                seconds=time.monotonic() - begun,
                figures=metrics.figures(),
                parameters=model.parameters,
                checkpoints=checkpoints.complete(),
            )
            results.write("results.json", found.model_dump_json(indent=1).encode())
        optimizer.state.clear()  # what the export needs may be as large

        def of_whole(module: nn.Module) -> float:
            return loss_of(module, data.held_out(held_out), device)

        exports = export(model, config, ranks, results, validation_loss, of_whole)
        if metrics:
            if exports:
                found = found.model_copy(update={"exports": exports})
                results.write("results.json", found.model_dump_json(indent=1).encode())
            print(f"done: loss {progress.first_loss:.4f} -> {progress.last_loss:.4f}", flush=True)


def require_work(origin: str, done: int, steps: int) -> None:
    """Raises InputError where another run's checkpoint leaves nothing to do. Our own may: the run was over."""
    if done >= steps:
        why = f"its newest checkpoint has done {done} steps, and this job ends after {steps}"
        raise InputError([Problem(key="RESUME_URI", value=origin, why=why, fix="Raise steps")])
