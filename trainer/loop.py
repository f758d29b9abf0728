"""The training loop: setup, one optimizer step after the other, results and exports."""

import gc
import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import torch
from torch import nn

from trainer.checkpoints import Checkpoints, State
from trainer.checkpoints.memory import open_memory_copies
from trainer.distributed import configure_device, init_distributed
from trainer.evaluation import average_buffers, compute_validation_loss
from trainer.export.final_export import export, mean_loss_of_model
from trainer.failures.memory_snapshot import memory_snapshot
from trainer.failures.out_of_memory import explain_out_of_memory
from trainer.failures.peer_loss import explain_peer_loss
from trainer.failures.step_limit import StepLimit
from trainer.failures.watchdog import EXPORT_TIMEOUT_SECONDS, Watchdog, describe_rank_location
from trainer.garbage_collection import collect_by_step
from trainer.job_requests import JobRequests
from trainer.models.experts import expert_load_imbalance
from trainer.models.pretrained import open_model_storage
from trainer.models.pretrained_weights import load_weights
from trainer.optimizer import build_optimizer, learning_rate
from trainer.parallelism import build_forward_backward, parallelize, wrap_in_ddp
from trainer.parallelism.forward_backward import Batch
from trainer.parallelism.gradients import global_gradient_norm
from trainer.parallelism.parallelize import set_context_shard
from trainer.recovery.agreement import NO_STATE
from trainer.recovery.members import Generation, Members
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
        device = configure_device(config, environment)
        session = open_session(config, environment, device, stack)
        members = Members.of_process(environment) if config.recovery == "in_process" else None
        while True:
            try:
                with ExitStack() as attempt:
                    Training(config, environment, device, session, members, attempt).run(started_at)
                return
            except Exception as error:
                if members is None or not members.is_peer_loss(error):
                    raise
                _log.warning("after step %d: a lost rank is replaced", session.progress.step)
            gc.collect()  # what refers to the old process groups


class Training:
    """The training of one rank with one set of process groups: to the end of the job, or until a rank is lost.

    The constructor joins the other ranks and loads the state: that of `session`, of another rank, or of the newest
    checkpoint. Raises InputError for user errors.
    """

    def __init__(
        self,
        config: TrainerConfig,
        environment: Environment,
        device: torch.device,
        session: Session,
        members: Members | None,
        stack: ExitStack,
    ) -> None:
        """`stack`: closed at the end of this training, before that of the session."""
        self._config, self._environment, self._device = config, environment, device
        self._session, self._stack = session, stack
        self._model, self._data, self._progress = session.model, session.data, session.progress
        self._loss_scale = session.precision.loss_scale
        self._layout = config.layout(environment.world_size, environment.local_world_size)
        generation = self._join_ranks(members)
        self._parallelize_model(init_sync=generation is None or generation.agreement.source is None)
        self._open_checkpoints()
        resumed_from = self._load_state(generation)
        self._open_metrics(resumed_from)
        # A GPU computes the next step while the host reads the figures of the previous one.
        self._defers_reading = defers_reading_metrics(config, device)
        self._unread: StartedStep | None = None  # whose figures are not read
        self._is_save_due = session.is_saving

    def _join_ranks(self, members: Members | None) -> Generation | None:
        """Create the process groups, and the watchdog, which reports a rank that hangs."""
        config, session, timeouts = self._config, self._session, self._config.timeouts
        generation = None
        if members is not None:
            step = self._progress.step if session.content == "complete" else NO_STATE
            generation = self._stack.enter_context(members.join_generation(step, timeouts.setup_seconds))
        store = generation.store if generation else None
        self._distributed = self._stack.enter_context(init_distributed(config, self._environment, self._device, store))
        self._memory = open_memory_copies(self._environment, config)
        if generation:
            generation.record_groups()
        rank, world_size = self._environment.rank, self._distributed.world_size
        where = describe_rank_location(self._device, self._environment.local_rank)
        self._watchdog = self._stack.enter_context(
            Watchdog(rank=rank, world_size=world_size, where=where, timeout_seconds=timeouts.setup_seconds)
        )
        snapshot = memory_snapshot(session.results, rank, self._device, enabled=config.memory.snapshot)
        parameters = self._model.parameters
        self._stack.enter_context(
            explain_out_of_memory(config, self._layout, self._device, where, parameters, snapshot)
        )
        self._stack.enter_context(explain_peer_loss(where, rank, lambda: self._progress.step))
        return generation

    def _parallelize_model(self, *, init_sync: bool) -> None:
        """Parallelize the model of a new process, and run its first forward and backward pass."""
        config, session = self._config, self._session
        self._is_new_process = session.optimizer is None
        if session.optimizer is None:
            parallelize(self._model, config, self._distributed, session.precision)
            session.optimizer = build_optimizer(self._model, config.optimizer)
        else:
            set_context_shard(self._model.module, self._distributed.context_shard)
        self._parameters, self._optimizer = list(self._model.module.parameters()), session.optimizer
        self._optimizer.zero_grad()  # after a recovery they are parts of the old module
        self._module = wrap_in_ddp(self._model, config, self._distributed, init_sync=init_sync)
        self._forward_backward = build_forward_backward(self._module, config, self._distributed, session.precision)
        self._stack.callback(self._forward_backward.close)
        # From this point each rank has its own random numbers.
        torch.manual_seed(config.seed + 1 + self._environment.rank)
        self._forward_backward.warm_up(next(self._data.held_out_batches(1)))
        self._optimizer.zero_grad()

    def _open_checkpoints(self) -> None:
        self._state = State(
            model=self._model.module,
            optimizer=self._optimizer,
            progress=self._progress,
            shape=self._session.shape,
            order=self._data.order,
            batch_size=self._config.batch_size,
            scaler=self._loss_scale.state,
            replicas=self._distributed.replicate_group,
        )
        self._checkpoints = self._stack.enter_context(
            Checkpoints(
                self._environment.checkpoint_uri,
                self._distributed.checkpoint_group,
                self._config.checkpoint,
                self._environment.nodes,
                memory=self._memory,
            )
        )

    def _load_state(self, generation: Generation | None) -> str | None:
        """Load the newest state, or the weights of a pretrained model. Return the URI of the checkpoint, if any."""
        session, progress = self._session, self._progress
        source = generation.agreement.source if generation else None  # the rank with the newest state
        resumed_from = None
        if generation and source is not None:
            session.take_state(self._state, generation.agreement, self._distributed.checkpoint_group)
            self._checkpoints.prepare_copies(self._state)
        else:
            session.require_initial()
            resumed_from = self._checkpoints.resume(self._state, self._environment.resume_uri)
            if resumed_from and not self._checkpoints.contains(resumed_from):
                require_remaining_steps(resumed_from, progress.step, self._config.steps)
            session.content = "complete"
        # A state has all weights, except those that LoRA has frozen.
        needs_weights = self._config.lora is not None or (source is None and resumed_from is None)
        if self._is_new_process and self._model.pretrained is not None and needs_weights:
            load_weights(self._model.module, open_model_storage(self._model.pretrained))
        return resumed_from

    def _open_metrics(self, resumed_from: str | None) -> None:
        config, environment, session = self._config, self._environment, self._session
        self._requests = session.requests = session.requests or JobRequests(environment)
        self._requests.repeat_failed()
        self._timer, self._step_limit = StepTimer(self._device), StepLimit(config.timeouts)
        self._progress_file = ProgressFile(environment)
        self._profiler = Profiler(config.profile, environment, session.results, self._device)
        self._stack.callback(self._profiler.discard)
        session.stack.callback(self._profiler.wait_for_uploads)
        if environment.rank == 0 and session.metrics is None:
            metrics = Metrics(config, environment, session.results, self._model, self._device)
            session.metrics = session.stack.enter_context(metrics)
            metrics.log_start(resumed_from)
        self._metrics = session.metrics

    def run(self, started_at: float) -> None:
        """Train to the last step, and write results and exports. `started_at`: time.monotonic() of the job's start."""
        self._finish(self._train(), started_at)

    def _train(self) -> float:
        """Train to the last step; return the last validation loss. Raises SystemExit if a rank is to terminate."""
        batches = self._watched(self._data.train_batches(self._progress.consumed))
        outcome = self._session.outcome  # of the last step before a recovery: what follows a step is repeated
        validation_loss: float | None = None
        self._timer.start()
        with collect_by_step() as collect_garbage:
            while outcome is not None or self._progress.step < self._config.steps:
                if outcome is None:
                    started = self._start_step(batches)
                    if self._unread is not None:
                        self._record_metrics(self._complete_step(self._unread))
                    self._unread = started
                    validation_loss = self._after_step(started.flags)
                else:
                    validation_loss = self._after_step(outcome.flags, outcome)
                outcome = None
                collect_garbage(self._progress.step)
        if validation_loss is None:  # resumed after the last step
            validation_loss = self._evaluate()
            if validation_loss is None:
                raise SystemExit(EXIT_TERMINATED)
        return validation_loss

    def _start_step(self, batches: Iterator[Batch]) -> StartedStep:
        """Start a step on the device; wait for other ranks, but not for the device."""
        config, timer, step = self._config, self._timer, self._progress.step + 1
        self._report_training()
        if config.recovery == "in_process":
            seed_step(config, self._environment.rank, step)
        with self._profiler.step(step):
            rate = learning_rate(step, config.steps, config.optimizer)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            loss = self._forward_backward.compute_gradients(batches, timer)
            flags = self._own_flags(step).all_reduce(self._distributed.control_group)
            with timer.phase("optimizer"):
                loss, share = mean_over_ranks(loss, self._layout.loss_ranks)
                scale = share * self._loss_scale.value
                norm = global_gradient_norm(self._parameters, self._distributed.pipeline_group) / scale
            shares = self._forward_backward.expert_shares
            load = [] if shares is None else [expert_load_imbalance(shares)]
            read_metrics = copy_to_host(torch.stack([loss, norm, *load]))
            if config.recovery == "in_process":
                read_metrics()  # if a rank was lost meanwhile, this step has not changed the weights
            self._report_save()
            self._checkpoints.wait_for_staging()
            self._report_training()
            with timer.phase("optimizer"):
                clip_norm = config.optimizer.clip_norm
                update_weights(self._optimizer, self._parameters, loss, norm, clip_norm=clip_norm, scale=scale)
                self._optimizer.zero_grad()
        self._progress.advance(config.batch_size)
        started = StartedStep(
            step=step,
            consumed=self._progress.consumed,
            flags=flags,
            learning_rate=rate,
            read_metrics=read_metrics,
            read_times=timer.finish(),
        )
        if self._profiler.is_tracing:
            self._watchdog.report_phase(step, "trace", config.timeouts.first_step_seconds)
        self._profiler.complete_step(step)
        return started

    def _own_flags(self, step: int) -> StepFlags:
        return StepFlags(
            is_termination_requested=self._requests.is_termination_requested,
            is_save_requested=self._requests.is_save_requested,
            is_save_due=self._checkpoints.is_due(step),
            is_save_retried=self._checkpoints.is_retrying,
            is_copy_due=self._checkpoints.is_copy_due(step),
            is_copying=self._checkpoints.is_copying,
        )

    def _complete_step(self, started: StartedStep) -> StepOutcome:
        """Wait until the device has completed a step. Raises FloatingPointError if the loss is not finite."""
        loss, norm, *load = started.read_metrics()
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        # A loss scale that is too large makes gradients infinite, never the loss.
        if not (is_finite or (math.isfinite(loss) and self._loss_scale.can_skip_step)):
            require_finite(started.step, loss, norm, started.learning_rate)
        times = started.read_times()
        self._step_limit.record(times.step)
        measures_waiting = self._forward_backward.measures_waiting
        busy_seconds = max(0.0, times.step - times.waiting) if measures_waiting else None
        self._progress_file.write(started.step, times.step, busy_seconds)
        self._progress.record_loss(started.step, loss)
        outcome = StepOutcome(
            step=started.step,
            consumed=started.consumed,
            flags=started.flags,
            loss=loss,
            gradient_norm=norm if is_finite else None,
            learning_rate=started.learning_rate,
            loss_scale=self._loss_scale.value if self._loss_scale.enabled else None,
            step_seconds=times.step,
            phase_seconds=times.phases,
            expert_load_imbalance=load[0] if load else None,
        )
        self._session.outcome = outcome
        self._loss_scale.update(finite=is_finite)
        return outcome

    def _after_step(self, flags: StepFlags, outcome: StepOutcome | None = None) -> float | None:
        """Do what is due after a step: evaluation, metrics and checkpoint. Return the validation loss.

        `outcome`: that of the step, if it is complete. Raises SystemExit if a rank is to terminate.
        """
        step = self._progress.step
        is_last = step == self._config.steps
        is_evaluated = is_last or step % self._config.evaluation.interval_steps == 0
        self._is_save_due = self._is_save_due or flags.is_save_requested or flags.is_save_due
        # In an outage of the storage, training does not wait for the save that is repeated.
        is_saved = is_last or flags.is_termination_requested or (self._is_save_due and not flags.is_save_retried)
        is_copied = flags.is_copy_due and not flags.is_copying
        if self._unread is not None and (not self._defers_reading or is_evaluated or is_saved or is_copied):
            outcome, self._unread = self._complete_step(self._unread), None
        validation_loss = None
        if is_evaluated:
            validation_loss = self._evaluate()
            if validation_loss is None:
                is_saved = True
                flags = replace(flags, is_save_requested=True, is_termination_requested=True)
        self._timer.start()  # metrics and the checkpoint count as time of the next step
        if outcome is not None:
            self._record_metrics(outcome, validation_loss)
        is_final = is_last or flags.is_termination_requested
        if is_saved:
            self._save(is_requested=flags.is_save_requested)
        if is_copied and not is_final:
            self._checkpoints.copy(self._state)
        self._report_checkpoints(waits=is_final, publish=not is_last)
        if flags.is_termination_requested:
            if self._metrics:
                self._metrics.finish()
            raise SystemExit(EXIT_TERMINATED)
        return validation_loss

    def _save(self, *, is_requested: bool) -> None:
        """Start to save a checkpoint."""
        self._is_save_due, self._session.is_saving = False, True
        self._report_save()
        average_buffers(self._model.module, self._distributed)
        self._requests.checkpoint_started(self._checkpoints.save(self._state), requested=is_requested)

    def _report_checkpoints(self, *, waits: bool, publish: bool) -> None:
        """Report the checkpoints that are complete. `waits`: until all are; `publish`: upload the metrics with them."""
        complete = self._checkpoints.finish(self._state, self._report_save) if waits else self._checkpoints.poll()
        for uri in complete:
            self._requests.checkpoint_saved(uri)
            if self._metrics:
                self._metrics.record_checkpoint(uri, publish=publish)
        if not self._checkpoints.is_saving:
            self._requests.repeat_failed()
            self._session.is_saving = self._is_save_due

    def _evaluate(self) -> float | None:
        """Return the validation loss; None if a rank is to terminate."""
        average_buffers(self._model.module, self._distributed)
        with closing(self._data.held_out_batches(self._validation_micro_batches)) as batches:
            return compute_validation_loss(
                self._module,
                self._forward_backward,
                batches,
                self._config.evaluation.batches,
                self._distributed,
                self._is_terminating,
            )

    @property
    def _validation_micro_batches(self) -> int:
        """Held-out micro-batches of each rank in an evaluation."""
        return self._config.evaluation.batches * self._layout.accumulation

    def _is_terminating(self) -> bool:
        self._watchdog.report_phase(self._progress.step, "evaluation", self._config.timeouts.evaluation_seconds)
        return self._requests.is_termination_requested

    def _record_metrics(self, outcome: StepOutcome, validation_loss: float | None = None) -> None:
        if self._metrics and self._session.recorded_step < outcome.step:
            self._metrics.record_step(
                outcome,
                validation_loss=validation_loss,
                checkpoint_seconds=self._checkpoints.pop_stall_seconds(),
                failed_checkpoints=self._checkpoints.failed_saves,
            )
            self._session.recorded_step = outcome.step

    def _report_save(self) -> None:
        self._watchdog.report_phase(self._progress.step, "checkpoint", self._config.timeouts.checkpoint_seconds)

    def _report_training(self) -> None:
        self._watchdog.report_phase(self._progress.step + 1, "training", self._step_limit.seconds)

    def _watched(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Report the wait for each micro-batch as a phase: the storage may not respond."""
        seconds = self._config.timeouts.data_seconds
        self._watchdog.report_phase(self._progress.step + 1, "data", seconds)
        for batch in batches:
            self._report_training()
            yield batch
            self._watchdog.report_phase(self._progress.step + 1, "data", seconds)

    def _finish(self, validation_loss: float, started_at: float) -> None:
        """Write the results of a complete job, and export the model."""
        config, session, metrics = self._config, self._session, self._metrics
        self._watchdog.report_phase(self._progress.step, "export", EXPORT_TIMEOUT_SECONDS)
        if metrics:
            metrics.finish()
            results = build_results(
                config,
                self._environment,
                self._progress,
                validation_loss=validation_loss,
                seconds=time.monotonic() - started_at,
                figures=metrics.figures(),
                parameters=self._model.parameters,
                checkpoints=self._checkpoints.list_complete(),
            )
            session.results.write("results.json", results.model_dump_json(indent=1).encode())
        self._optimizer.state.clear()  # the export may need as much memory

        def evaluate_whole_model(module: nn.Module) -> float:
            batches = self._data.held_out_batches(self._validation_micro_batches)
            return mean_loss_of_model(module, batches, self._device)

        exports = export(
            self._model,
            config,
            self._distributed,
            session.results,
            self._data,
            validation_loss,
            evaluate_whole_model,
        )
        if metrics:
            if exports:
                results = results.model_copy(update={"exports": exports})
                session.results.write("results.json", results.model_dump_json(indent=1).encode())
            _log.info("done: loss %.4f -> %.4f", self._progress.first_loss, self._progress.last_loss)


def defers_reading_metrics(config: TrainerConfig, device: torch.device) -> bool:
    """Whether loss and norm of a step are read during the next step, so that a GPU does not wait for the host.

    A loss scale depends on the figures of the previous step, and a recovery in process repeats what follows a step.
    """
    return device.type == "cuda" and config.precision != "fp16" and config.recovery == "restart"


def require_remaining_steps(uri: str, completed: int, steps: int) -> None:
    """Raise InputError if another run's checkpoint has already completed all steps of this job.

    A checkpoint of this run may: the run was complete.
    """
    if completed >= steps:
        reason = f"its newest checkpoint has completed {completed} steps, and this job has {steps}"
        raise InputError([Problem("RESUME_URI", uri, reason, "Increase steps", "no_remaining_steps")])
