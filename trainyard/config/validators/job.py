"""Validators of the job and of its deadlines."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainyard.config import CONFIG_KEY
from trainyard.config.settings import StackSettings
from trainyard.config.training.models import CustomModelConfig, DecoderConfig
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem
from trainyard.quantity import quantity

# Variables that torchrun sets (docs.pytorch.org, "torchrun", environment variables), and those that the agent sets.
_RESERVED_VARIABLES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DATA_URI", "CHECKPOINT_URI", "RESULTS_URI", "RESUME_URI"),
    *("METRICS_DIR", "CHECKPOINT_REQUEST", "MODEL_URI", "MODEL_PATH"),
}
_CREDENTIAL_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_RESERVED_PREFIXES = ("AWS_", "TORCHELASTIC_", "TRAINYARD_")


def exactly_one_job_kind(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The job is the built-in trainer (train) or a custom job (source and command)."""
    job = settings.job
    custom = job.source is not None or job.command is not None
    if custom and job.train is not None:
        reason = "conflicts with source or command: a job is the built-in trainer or a custom job"
        yield invalid_setting("job.train", None, reason, "Keep train, or keep source and command")
    elif custom and job.source is None:
        fix = "Add the folder of the job, relative to Pulumi.yaml"
        yield invalid_setting("job.source", None, "a custom job needs both source and command", fix)
    elif custom and job.command is None:
        fix = "Add the script in that folder and its arguments, as a list"
        yield invalid_setting("job.command", None, "a custom job needs both source and command", fix)
    elif not custom and job.train is None:
        fix = "Add train (it may be {}), or source and command"
        yield invalid_setting("job.train", None, "the job has neither train nor source and command", fix)


def container_for_custom_job(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Only a custom job runs in a container."""
    job = settings.job
    if job.container is not None and job.source is None:
        reason = "the built-in trainer runs in the Python environment of the nodes, not in a container"
        yield invalid_setting(
            "job.container", job.container, reason, "Remove it, or set source and command of a custom job"
        )


def source_exists(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`job.source` is a folder and `job.command` begins with a script in it."""
    job = settings.job
    if job.source is None:
        return
    folder = root / job.source
    if folder.is_file():
        fix = "Write the folder of the script, and the script as the first entry of job.command"
        yield invalid_setting("job.source", job.source, "is a file, not a folder", fix)
    elif not folder.is_dir():
        fix = "Write the job's folder relative to that of Pulumi.yaml, such as `..` for the folder above it"
        reason = "no such folder" if folder == Path(job.source) else f"no such folder in {root}"
        yield invalid_setting("job.source", job.source, reason, fix)
    elif job.command:
        script = PurePosixPath(job.command[0])
        outside = script.is_absolute() or ".." in script.parts
        if outside or not (folder / script).is_file():
            reason = (
                f"is outside {job.source}, the only folder that nodes download"
                if outside
                else f"no such file in {job.source}"
            )
            fix = "Begin with a Python script of the source folder, relative to it"
            yield invalid_setting("job.command", job.command[0], reason, fix)


def training_fits_processes(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The world size is divisible by the parallel degrees, and the batch size by the data parallel ranks."""
    train = settings.job.train
    if train is None:
        return
    processes = f"({quantity(settings.nodes, 'node')} x {settings.processes_per_node})"
    for problem in train.problems(settings.world_size, settings.processes_per_node):
        yield replace(problem, key=f"{CONFIG_KEY}.job.train.{problem.key}", reason=f"{problem.reason} {processes}")


def min_nodes_possible(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The job can continue with at least one smaller number of nodes, if min_nodes allows that."""
    if settings.min_nodes is None or settings.smaller_sizes:
        return
    if settings.min_nodes >= settings.nodes:
        reason = f"the job has {quantity(settings.nodes, 'node')}, and it is to continue with fewer"
    else:
        (*_, problem) = settings.size_problems(settings.nodes - 1)
        reason = f"the built-in trainer cannot continue with fewer than {settings.nodes} nodes: {problem.reason}"
    yield invalid_setting("min_nodes", settings.min_nodes, reason, "Reduce it, change job.train, or remove it")


def one_gpu_per_process(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A node has a GPU for each of its processes."""
    gpu = settings.worker_type.gpu
    if gpu and settings.processes_per_node > gpu.count:
        gpus = "1 GPU" if gpu.count == 1 else f"{gpu.count} GPUs"
        reason = f"{settings.instance_type} has {gpus}, and each process needs one"
        fix = f"Set it to {gpu.count}, or remove it"
        yield invalid_setting("job.processes_per_node", settings.processes_per_node, reason, fix)


def precision_supported_by_gpu(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The GPU's tensor cores support the precision of the built-in trainer."""
    gpu, train = settings.worker_type.gpu, settings.job.train
    if train is None or gpu is None:
        return
    specs = gpu.specs
    # GPUs with products in 4 bits have scales of blocks, too.
    peaks = {
        "bf16": specs.bf16_tflops,
        "float8": specs.fp8_tflops,
        "mxfp8": specs.fp4_tflops,
        "nvfp4": specs.fp4_tflops,
    }
    if train.precision in peaks and peaks[train.precision] is None:
        reason = f"the tensor cores of {gpu.model} GPUs ({settings.instance_type}) do not support it"
        fix = "Set it to bf16" if gpu.specs.bf16_tflops else "Set it to fp16"
        yield invalid_setting("job.train.precision", train.precision, reason, fix)


def builtin_corpus_matches_model(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The model of the built-in trainer can read the built-in corpus: bytes of text."""
    train = settings.job.train
    if not settings.job.builtin_corpus or train is None:
        return
    model = train.model
    if model.task == "images":
        reason = f"the built-in corpus is text, and job.train.model is of kind {model.kind}"
        yield invalid_setting("job.builtin_corpus", True, reason, "Remove it, and set job.dataset to an image dataset")
    elif isinstance(model, DecoderConfig | CustomModelConfig) and model.vocabulary < 256:
        reason = "the built-in corpus is bytes, 256 token ids"
        yield invalid_setting("job.train.model.vocabulary", model.vocabulary, reason, "Set it to 256 or more")


def variables_defined_once(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """No variable is in both `job.secrets` and `job.environment`."""
    for name in sorted(settings.job.secrets.keys() & settings.job.environment.keys()):
        reason = "job.environment defines the same variable"
        yield invalid_setting(f"job.secrets.{name}", settings.job.secrets[name], reason, "Keep one of the two")


def variables_not_reserved(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The job's variables are not those of torchrun, the AWS SDKs or the agent."""
    for part in ("environment", "secrets"):
        for name, value in sorted(getattr(settings.job, part).items()):
            if name in _RESERVED_VARIABLES or name.startswith(_RESERVED_PREFIXES):
                reason = "reserved for torchrun, the AWS SDKs or the node's agent"
                shown, fix = value, "Choose another name"
                if name in _CREDENTIAL_VARIABLES:  # the message does not repeat the value
                    shown, fix = None, "Remove it: the job has the credentials of its IAM role"
                yield invalid_setting(f"job.{part}.{name}", shown, reason, fix)


def time_limit_after_startup(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The job's time limit is longer than the startup timeout."""
    limit, startup = settings.job.time_limit_minutes, settings.launch.startup_timeout_minutes
    if limit <= startup:
        reason = f"nodes may need {quantity(startup, 'minute')} to start (launch.startup_timeout_minutes)"
        fix = f"Set it to more than {startup:g}, or launch.startup_timeout_minutes to less"
        yield invalid_setting("job.time_limit_minutes", limit, reason, fix)


def health_checks_fit_startup(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Two health checks and the start of a replacement node fit into the startup timeout."""
    check, startup = settings.launch.health_check_timeout_minutes, settings.launch.startup_timeout_minutes
    if 2 * check >= startup:
        reason = f"two health checks must fit into the {quantity(startup, 'minute')} of launch.startup_timeout_minutes"
        fix = f"Set it to less than {startup / 2:g}, or launch.startup_timeout_minutes to more"
        yield invalid_setting("launch.health_check_timeout_minutes", check, reason, fix)


VALIDATORS = (
    container_for_custom_job,
    exactly_one_job_kind,
    source_exists,
    training_fits_processes,
    min_nodes_possible,
    one_gpu_per_process,
    precision_supported_by_gpu,
    builtin_corpus_matches_model,
    variables_defined_once,
    variables_not_reserved,
    time_limit_after_startup,
    health_checks_fit_startup,
)
