"""The part of a job that is independent of process groups, and remains when a lost rank is replaced."""

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist

from trainer.checkpoints import Progress, State
from trainer.data import Data, open_data
from trainer.job_requests import JobRequests
from trainer.models import build
from trainer.models.model import Model
from trainer.models.pretrained import open_model_storage
from trainer.models.pretrained_weights import SafetensorsReader
from trainer.precision import Precision
from trainer.recovery.agreement import Agreement, RecoveryError
from trainer.recovery.state_transfer import transfer_state
from trainer.settings import Environment
from trainer.step import StepOutcome
from trainer.storage import Storage, open_storage
from trainer.telemetry.loggers.setup import require_libraries
from trainer.telemetry.metrics import Metrics
from trainyard.config.training import TrainerConfig
from trainyard.errors import InputError, Problem
from trainyard.models.failure_messages import PEER_LOST


@dataclass(kw_only=True)
class Session:
    """One rank's model, data and progress."""

    results: Storage
    data: Data
    model: Model
    shape: dict[str, Any]  # the model's configuration in checkpoints, as JSON values
    precision: Precision
    stack: ExitStack  # closed at the end of the job
    progress: Progress = field(default_factory=Progress)
    requests: JobRequests | None = None
    optimizer: torch.optim.Optimizer | None = None
    metrics: Metrics | None = None
    outcome: StepOutcome | None = None  # of the last completed step
    recorded_step: int = 0  # the last step that `metrics` has recorded
    is_saving: bool = False  # whether a checkpoint has started that is not complete
    # The weights and the optimizer's state: those of a new model, those of progress.step, or a mixture of two steps.
    content: Literal["initial", "complete", "mixed"] = "initial"

    def take_state(self, state: State, agreement: Agreement, group: dist.ProcessGroup) -> None:
        """Take the state of the agreement's source; what that rank has to do after its last step is repeated here."""
        assert agreement.source is not None
        if self.progress.step < agreement.step:
            self.content = "mixed"  # until the transfer is complete: the source may be lost meanwhile
        values = transfer_state(state, agreement.source, group, (self.outcome, self.is_saving))
        self.outcome, self.is_saving = values
        self.content = "complete"

    def require_initial(self) -> None:
        """Raise RecoveryError if this rank has part of another state than that of a new model or of a checkpoint."""
        if self.content == "mixed":
            raise RecoveryError(f"{PEER_LOST}, and no rank has the complete state of a step")


def open_session(config: TrainerConfig, environment: Environment, device: torch.device, stack: ExitStack) -> Session:
    """Open the session, and close it with `stack`. Raises InputError for user errors before a rank waits for others."""
    layout = config.layout(environment.world_size, environment.local_world_size)
    rank = environment.rank
    results = open_storage(environment.results_uri, "RESULTS_URI")
    if rank == 0:
        require_libraries(config.loggers)
        results.require(create=True)
        open_storage(environment.checkpoint_uri, "CHECKPOINT_URI").require(create=True)
        open_storage(str(environment.metrics_dir), "METRICS_DIR").require(create=True)
    data = open_data(config, environment, rank=layout.data_rank(rank), ranks=layout.data)
    stack.callback(data.close)
    model = build(config, layout.stage(rank))
    data.require_vocabulary_fits(model.vocabulary, config.model)
    if data.separates_documents and model.separates_documents and not model.separates_documents():
        if config.model.kind == "custom":
            reason, fix = "needs a model whose forward accepts cu_seqlens", "Set it to false, or add the argument"
        else:
            reason = "is not possible with this model, whose attention or state connects the documents of a sequence"
            fix = "Set it to false"
        problem = Problem("config.data.separate_documents", True, reason, fix, "documents_not_separable")
        raise InputError([problem])
    shape = config.shape
    if config.lora is not None and model.pretrained is not None:
        shape["lora"]["base"] = SafetensorsReader(open_model_storage(model.pretrained)).fingerprint()
    precision = Precision(config, device)
    return Session(results=results, data=data, model=model, shape=shape, precision=precision, stack=stack)


def seed_step(config: TrainerConfig, rank: int, step: int) -> None:
    """Seed this rank's generators for one step: a new rank continues with the random numbers of the lost rank."""
    digest = hashlib.sha256(f"{config.seed}:{rank}:{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
