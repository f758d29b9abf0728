"""The training loop: setup, one optimizer step after the other, results and exports."""

import gc
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import torch
from torch import nn

from trainer.checkpoints import Checkpoints, State
from trainer.checkpoints.memory import open_memory_copies
from trainer.distributed import choose_device, init_distributed
from trainer.evaluation import average_buffers, compute_validation_loss
from trainer.export.final_export import export, mean_loss_of_model
from trainer.failures.memory_snapshot import memory_snapshot
from trainer.failures.out_of_memory import explain_out_of_memory
from trainer.failures.peer_loss import explain_peer_loss
from trainer.failures.step_limit import StepLimit
from trainer.failures.watchdog import EXPORT_TIMEOUT_SECONDS, Watchdog, describe_rank_location
from trainer.garbage import collect_by_step
from trainer.job_requests import JobRequests
from trainer.models.experts import expert_load
from trainer.models.pretrained import open_model_storage
from trainer.models.pretrained_weights import load_weights
from trainer.optimizer import build_optimizer, learning_rate
from trainer.parallelism import build_forward_backward, parallelize, replicate
from trainer.parallelism.forward_backward import Batch
from trainer.parallelism.gradients import global_gradient_norm
from trainer.recovery.agreement import NO_STATE
from trainer.recovery.members import Members
from trainer.session import Session, open_session, seed_step
from trainer.settings import Environment
from trainer.step import StartedStep, StepFlags, StepOutcome, copy_to_host, mean_over_ranks, update_weights
from trainer.telemetry.metrics import Metrics, require_finite
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.progress_file import ProgressFile
from trainer.telemetry.results import build_results
from trainer.telemetry.timing import StepTimer
from trainyard.config.training import TrainerConfig
from trainyard.errors import InputError, Problem

EXIT_TERMINATED = 128 + 15  # the exit status that a shell reports for SIGTERM
_log = logging.getLogger(__name__)


def train(config: TrainerConfig, environment: Environment) -> None:
    """Run the job to its last step.

    Raises InputError for a configuration or environment error, before the first step.
    """
    started_at = time.monotonic()
    with ExitStack() as stack:
        device = choose_device(config, environment)
        session = open_session(config, environment, device, stack)
        members = Members.of_process(environment) if config.recovery == "in_process" else None
        while True:
            try:
                _train(config, environment, device, session, members, started_at)
                return
            except Exception as error:
                if members is None or not members.is_peer_loss(error):
                    raise
                _log.warning("after step %d: a lost rank is replaced", session.progress.step)
            gc.collect()  # what refers to the old process groups


def _train(
    config: TrainerConfig,
    environment: Environment,
    device: torch.device,
    session: Session,
    members: Members | None,
    started_at: float,
) -> None:
    """Run the job from the state of `session`, or else from the newest checkpoint, until its end or a failure."""
    rank, timeouts = environment.rank, config.timeouts
    layout = config.layout(environment.world_size, environment.local_world_size)
    data, model, precision, progress = session.data, session.model, session.precision, session.progress
    loss_scale = precision.loss_scale

    with ExitStack() as stack:
        generation = None
        if members is not None:
            step = progress.step if session.content == "complete" else NO_STATE
            generation = stack.enter_context(members.join_generation(step, timeouts.setup_seconds))
        store = generation.store if generation else None
        source = generation.agreement.source if generation else None  # the rank with the newest state
        distributed = stack.enter_context(init_distributed(config, environment, device, store))
        memory = open_memory_copies(environment, config)
        if generation:
            generation.record_groups()
        where = describe_rank_location(device, environment.local_rank)
        watchdog = stack.enter_context(
            Watchdog(rank=rank, world_size=distributed.world_size, where=where, timeout_seconds=timeouts.setup_seconds)
        )
        snapshot = memory_snapshot(session.results, rank, device, enabled=config.memory.snapshot)
        stack.enter_context(explain_out_of_memory(config, layout, device, where, model.parameters, snapshot))
        stack.enter_context(explain_peer_loss(where, rank, lambda: progress.step))
        is_new_process = session.optimizer is None
        if session.optimizer is None:
            parallelize(model, config, distributed, precision)
            session.optimizer = build_optimizer(model, config.optimizer)
        parameters, optimizer = list(model.module.parameters()), session.optimizer
        optimizer.zero_grad()  # after a recovery they are parts of the old module
        module = replicate(model, config, distributed, init_sync=source is None)
        forward_backward = build_forward_backward(module, config, distributed, precision)
        stack.callback(forward_backward.close)
        torch.manual_seed(config.seed + 1 + rank)  # from this point each rank has its own random numbers
        forward_backward.warm_up(next(data.held_out_batches(1)))
        optimizer.zero_grad()

        state = State(
            model=model.module,
            optimizer=optimizer,
            progress=progress,
            shape=session.shape,
            order=data.order,
            batch_size=config.batch_size,
            scaler=loss_scale.state,
            replicas=distributed.replicate_group,
        )
        checkpoints = stack.enter_context(
            Checkpoints(
                environment.checkpoint_uri,
                distributed.checkpoint_group,
                config.checkpoint,
                environment.nodes,
                memory=memory,
            )
        )
        resumed_from = None
        if generation and source is not None:
            session.take_state(state, generation.agreement, distributed.checkpoint_group)
            checkpoints.prepare_copies(state)
        else:
            session.require_initial()
            resumed_from = checkpoints.resume(state, environment.resume_uri)
            if resumed_from and not checkpoints.contains(resumed_from):
                require_remaining_steps(resumed_from, progress.step, config.steps)
            session.content = "complete"
        # A state has all weights, except those that LoRA has frozen.
        needs_weights = config.lora is not None or (source is None and resumed_from is None)
        if is_new_process and model.pretrained is not None and needs_weights:
            load_weights(model.module, open_model_storage(model.pretrained))

        requests, timer = session.requests or JobRequests(environment), StepTimer(device)
        session.requests = requests
        requests.repeat_failed()
        validation_micro_batches = config.evaluation.batches * layout.accumulation  # of each rank

        def is_terminating() -> bool:
            watchdog.report_phase(progress.step, "evaluation", timeouts.evaluation_seconds)
            return requests.is_termination_requested

        def evaluate() -> float | None:
            average_buffers(model.module, distributed)
            with closing(data.held_out_batches(validation_micro_batches)) as batches:
                return compute_validation_loss(
                    module, forward_backward, batches, config.evaluation.batches, distributed, is_terminating
                )

        progress_file = ProgressFile(environment)
        profiler = Profiler(config.profile, environment, session.results, device)
        stack.callback(profiler.discard)
        session.stack.callback(profiler.wait_for_uploads)
        metrics = session.metrics
        if rank == 0 and metrics is None:
            metrics = Metrics(config, environment, session.results, model, device)
            session.metrics = session.stack.enter_context(metrics)
            metrics.log_start(resumed_from)

        def report_save() -> None:
            watchdog.report_phase(progress.step, "checkpoint", timeouts.checkpoint_seconds)

        step_limit = StepLimit(timeouts)

        def report_training() -> None:
            watchdog.report_phase(progress.step + 1, "training", step_limit.seconds)

        def watched(batches: Iterator[Batch]) -> Iterator[Batch]:
            """Report the wait for each micro-batch as a phase: the storage may not respond."""
            watchdog.report_phase(progress.step + 1, "data", timeouts.data_seconds)
            for batch in batches:
                report_training()
                yield batch
                watchdog.report_phase(progress.step + 1, "data", timeouts.data_seconds)

        def start_step() -> StartedStep:
            """Start a step on the device; wait for other ranks, but not for the device."""
            step = progress.step + 1
            report_training()
            if config.recovery == "in_process":
                seed_step(config, rank, step)
            with profiler.step(step):
                lr = learning_rate(step, config.steps, config.optimizer)
                for group in optimizer.param_groups:
                    group["lr"] = lr

                loss = forward_backward.compute_gradients(batches, timer)
                own_flags = StepFlags(
                    is_termination_requested=requests.is_termination_requested,
                    is_save_requested=requests.is_save_requested,
                    is_save_due=checkpoints.is_due(step),
                    is_save_retried=checkpoints.is_retrying,
                    is_copy_due=checkpoints.is_copy_due(step),
                    is_copying=checkpoints.is_copying,
                )
                flags = own_flags.of_all_ranks(distributed.control_group)
                with timer.phase("optimizer"):
                    loss, share = mean_over_ranks(loss, layout.loss_ranks)
                    gradient_scale = share * loss_scale.value
                    norm = global_gradient_norm(parameters, distributed.pipeline_group) / gradient_scale
                shares = forward_backward.expert_shares
                load = [] if shares is None else [expert_load(shares)]
                read_figures = copy_to_host(torch.stack([loss, norm, *load]))
                if config.recovery == "in_process":
                    read_figures()  # if a rank was lost meanwhile, this step has not changed the weights

                report_save()
                checkpoints.wait_for_staging()
                report_training()
                with timer.phase("optimizer"):
                    clip_norm = config.optimizer.clip_norm
                    update_weights(optimizer, parameters, loss, norm, clip_norm=clip_norm, scale=gradient_scale)
                    optimizer.zero_grad()
            progress.advance(config.batch_size)
            started = StartedStep(
                step=step,
                consumed=progress.consumed,
                flags=flags,
                learning_rate=lr,
                read_figures=read_figures,
                read_times=timer.finish(),
            )
            if profiler.is_tracing:
                watchdog.report_phase(step, "trace", timeouts.first_step_seconds)
            profiler.complete_step(step)
            return started

        def complete_step(started: StartedStep) -> StepOutcome:
            """Wait until the device has completed a step. Raises FloatingPointError if the loss is not finite."""
            loss, norm, *load = started.read_figures()
            is_finite = math.isfinite(loss) and math.isfinite(norm)
            # A loss scale that is too large makes gradients infinite, never the loss.
            if not (is_finite or (math.isfinite(loss) and loss_scale.can_skip_step)):
                require_finite(started.step, loss, norm, started.learning_rate)
            times = started.read_times()
            step_limit.record(times.step)
            busy_seconds = max(0.0, times.step - times.waiting) if forward_backward.measures_waiting else None
            progress_file.write(started.step, times.step, busy_seconds)
            progress.record_loss(started.step, loss)
            session.outcome = StepOutcome(
                step=started.step,
                consumed=started.consumed,
                flags=started.flags,
                loss=loss,
                gradient_norm=norm if is_finite else None,
                learning_rate=started.learning_rate,
                loss_scale=loss_scale.value if loss_scale.enabled else None,
                step_seconds=times.step,
                phase_seconds=times.phases,
                expert_load=load[0] if load else None,
            )
            loss_scale.update(finite=is_finite)
            return session.outcome

        def record_metrics(outcome: StepOutcome, validation_loss: float | None = None) -> None:
            if metrics and session.recorded_step < outcome.step:
                metrics.record_step(
                    outcome,
                    validation_loss=validation_loss,
                    checkpoint_seconds=checkpoints.pop_stall_seconds(),
                    failed_checkpoints=checkpoints.failed_saves,
                )
                session.recorded_step = outcome.step

        # A GPU computes the next step while the host reads the figures of the previous one.
        reads_later = reads_figures_later(config, device)
        validation_loss: float | None = None
        is_save_due = session.is_saving
        outcome = session.outcome  # of the last step before a recovery: what follows a step is repeated
        unread: StartedStep | None = None

        batches = watched(data.train_batches(progress.consumed))
        timer.start()
        with collect_by_step() as collect_garbage:
            while outcome is not None or progress.step < config.steps:
                if outcome is None:
                    started = start_step()
                    if unread is not None:
                        record_metrics(complete_step(unread))
                    flags, unread = started.flags, started
                else:
                    flags = outcome.flags
                step, is_last = progress.step, progress.step == config.steps
                save_requested, termination_requested = flags.is_save_requested, flags.is_termination_requested
                is_evaluated = is_last or step % config.evaluation.interval_steps == 0
                is_save_due = is_save_due or save_requested or flags.is_save_due
                # In an outage of the storage, training does not wait for the save that is repeated.
                is_saved = is_last or termination_requested or (is_save_due and not flags.is_save_retried)
                is_copied = flags.is_copy_due and not flags.is_copying
                if unread is not None and (not reads_later or is_evaluated or is_saved or is_copied):
                    outcome, unread = complete_step(unread), None
                validation_loss = None
                if is_evaluated:
                    validation_loss = evaluate()
                    if validation_loss is None:
                        is_saved = save_requested = termination_requested = True
                timer.start()  # metrics and the checkpoint count as time of the next step
                if outcome is not None:
                    record_metrics(outcome, validation_loss)

                is_final = is_last or termination_requested
                if is_saved:
                    is_save_due, session.is_saving = False, True
                    report_save()
                    average_buffers(model.module, distributed)
                    requests.checkpoint_started(checkpoints.save(state), requested=save_requested)
                if is_copied and not is_final:
                    checkpoints.copy(state)
                for uri in checkpoints.finish(state, report_save) if is_final else checkpoints.poll():
                    requests.checkpoint_saved(uri)
                    if metrics:
                        metrics.record_checkpoint(uri, publish=not is_last)
                if not checkpoints.is_saving:
                    requests.repeat_failed()
                    session.is_saving = is_save_due
                if termination_requested:
                    if metrics:
                        metrics.finish()
                    raise SystemExit(EXIT_TERMINATED)
                outcome = None
                collect_garbage(step)

        if validation_loss is None:  # resumed after the last step
            validation_loss = evaluate()
            if validation_loss is None:
                raise SystemExit(EXIT_TERMINATED)
        watchdog.report_phase(progress.step, "export", EXPORT_TIMEOUT_SECONDS)
        if metrics:
            metrics.finish()
            run_results = build_results(
                config,
                environment,
                progress,
                validation_loss=validation_loss,
                seconds=time.monotonic() - started_at,
                figures=metrics.figures(),
                parameters=model.parameters,
                checkpoints=checkpoints.list_complete(),
            )
            session.results.write("results.json", run_results.model_dump_json(indent=1).encode())
        optimizer.state.clear()  # the export may need as much memory

        def evaluate_whole_model(module: nn.Module) -> float:
            return mean_loss_of_model(module, data.held_out_batches(validation_micro_batches), device)

        exports = export(model, config, distributed, session.results, data, validation_loss, evaluate_whole_model)
        if metrics:
            if exports:
                run_results = run_results.model_copy(update={"exports": exports})
                session.results.write("results.json", run_results.model_dump_json(indent=1).encode())
            _log.info("done: loss %.4f -> %.4f", progress.first_loss, progress.last_loss)


def reads_figures_later(config: TrainerConfig, device: torch.device) -> bool:
    """Whether loss and norm of a step are read during the next step, so that a GPU does not wait for the host.

    A loss scale depends on the figures of the previous step, and a recovery in process repeats what follows a step.
    """
    if config.data.images == "dali":  # its pipeline waits for the stream at each micro-batch
        return False
    return device.type == "cuda" and config.precision != "fp16" and config.recovery == "restart"


def require_remaining_steps(uri: str, completed: int, steps: int) -> None:
    """Raise InputError if another run's checkpoint has already completed all steps of this job.

    A checkpoint of this run may: the run was complete.
    """
    if completed >= steps:
        reason = f"its newest checkpoint has completed {completed} steps, and this job has {steps}"
        raise InputError([Problem("RESUME_URI", uri, reason, "Increase steps", "no_remaining_steps")])
