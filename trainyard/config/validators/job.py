"""Rules about the job."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.training.models import DecoderConfig
from trainyard.config.validators.rule import Rule

# Of torchrun (docs.pytorch.org, "torchrun", environment variables), and those that the node's agent sets.
_TAKEN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DATA_URI", "CHECKPOINT_URI", "RESULTS_URI", "RESUME_URI"),
    *("METRICS_DIR", "CHECKPOINT_REQUEST"),
}
_TAKEN_BEGINNINGS = ("AWS_", "TORCHELASTIC_", "TRAINYARD_")


def one_kind_of_job(settings: StackSettings, root: Path) -> Iterator[Problem]:
    job = settings.job
    own = job.source is not None or job.command is not None
    if own and job.train is not None:
        yield Problem(
            key=f"{CONFIG_KEY}.job.train",
            value="...",
            why="stands beside source or command, and a job is the built-in trainer's or the user's own",
            fix="Keep train, or keep source and command",
        )
    elif own and (job.source is None or job.command is None):
        absent = "source" if job.source is None else "command"
        yield Problem(
            key=f"{CONFIG_KEY}.job.{absent}",
            value=None,
            why="the user's own job needs both source and command",
            fix="Add the folder of the job, relative to Pulumi.yaml"
            if absent == "source"
            else "Add the script in that folder and its arguments, as a list",
        )
    elif not own and job.train is None:
        yield Problem(
            key=f"{CONFIG_KEY}.job.train",
            value=None,
            why="the job says neither what the built-in trainer shall train nor what else to run",
            fix="Add train (it may be {}), or source and command",
        )


def container_runs_an_own_job(settings: StackSettings, root: Path) -> Iterator[Problem]:
    job = settings.job
    if job.container is not None and job.source is None:
        yield Problem(
            key=f"{CONFIG_KEY}.job.container",
            value=job.container,
            why="the built-in trainer runs in the environment that nodes make for it, which no image is known to have",
            fix="Remove it, or bring a job of your own by source and command",
        )


def source_is_there(settings: StackSettings, root: Path) -> Iterator[Problem]:
    job = settings.job
    if job.source is None:
        return
    folder = root / job.source
    if folder.is_file():
        yield Problem(
            key=f"{CONFIG_KEY}.job.source",
            value=job.source,
            why="is a file, not a folder",
            fix="Give the folder that the script is in, and the script as the first word of job.command",
        )
    elif not folder.is_dir():
        yield Problem(
            key=f"{CONFIG_KEY}.job.source",
            value=job.source,
            why=f"no such folder in {root}",
            fix="Give the job's folder relative to Pulumi.yaml",
        )
    elif job.command:
        script = PurePosixPath(job.command[0])
        outside = script.is_absolute() or ".." in script.parts
        if outside or not (folder / script).is_file():
            yield Problem(
                key=f"{CONFIG_KEY}.job.command",
                value=job.command[0],
                why=f"outside {job.source}, and nothing else reaches the nodes"
                if outside
                else f"no such file in {job.source}",
                fix="Let the first word be a Python script of the source folder, relative to it",
            )


def batch_splits(settings: StackSettings, root: Path) -> Iterator[Problem]:
    train = settings.job.train
    if train is None:
        return
    ranks = f"({settings.nodes} nodes x {settings.processes_per_node})"
    for found in train.misfits(settings.world_size, settings.processes_per_node):
        yield replace(found, key=f"{CONFIG_KEY}.job.train.{found.key}", why=f"{found.why} {ranks}")


def processes_fit(settings: StackSettings, root: Path) -> Iterator[Problem]:
    gpu = settings.worker_type.gpu
    if gpu and settings.processes_per_node > gpu.count:
        gpus = "1 GPU" if gpu.count == 1 else f"{gpu.count} GPUs"
        yield Problem(
            key=f"{CONFIG_KEY}.job.processes_per_node",
            value=settings.processes_per_node,
            why=f"{settings.instance_type} has {gpus}, and a process needs one of its own",
            fix=f"Set it to {gpu.count}, or leave it out",
        )


def precision_is_the_chips(settings: StackSettings, root: Path) -> Iterator[Problem]:
    gpu, train = settings.worker_type.gpu, settings.job.train
    if train is None or gpu is None:
        return
    peaks = {"bf16": gpu.chip.bf16_tflops, "float8": gpu.chip.fp8_tflops}
    if train.precision in peaks and peaks[train.precision] is None:
        yield Problem(
            key=f"{CONFIG_KEY}.job.train.precision",
            value=train.precision,
            why=f"{settings.instance_type} has {gpu.model} GPUs, whose tensor cores lack it",
            fix="Set it to bf16" if gpu.chip.bf16_tflops else "Set it to fp16",
        )


def corpus_is_for_trainer(settings: StackSettings, root: Path) -> Iterator[Problem]:
    train = settings.job.train
    if not settings.job.builtin_corpus or train is None:
        return
    model = train.model
    if model.task == "images":
        yield Problem(
            key=f"{CONFIG_KEY}.job.builtin_corpus",
            value=True,
            why=f"the built-in corpus is text, and job.train.model is of kind {model.kind}",
            fix="Remove it, and name a dataset of images as job.dataset",
        )
    elif model.task == "masked":
        yield Problem(
            key=f"{CONFIG_KEY}.job.builtin_corpus",
            value=True,
            why="the built-in corpus is bytes, which have no mask token, and job.train.model's task is masked",
            fix="Remove it, and name a dataset prepared with the model's tokenizer as job.dataset",
        )
    elif isinstance(model, DecoderConfig) and model.vocabulary < 256:
        yield Problem(
            key=f"{CONFIG_KEY}.job.train.model.vocabulary",
            value=model.vocabulary,
            why="the built-in corpus is bytes, 256 token ids",
            fix="Set it to 256 or more",
        )


def variables_have_one_source(settings: StackSettings, root: Path) -> Iterator[Problem]:
    for name in sorted(settings.job.secrets.keys() & settings.job.environment.keys()):
        yield Problem(
            key=f"{CONFIG_KEY}.job.secrets.{name}",
            value=settings.job.secrets[name],
            why="stands in job.environment too, and a variable has one value",
            fix="Keep one of the two",
        )


def variables_are_free(settings: StackSettings, root: Path) -> Iterator[Problem]:
    for part in ("environment", "secrets"):
        for name, value in sorted(getattr(settings.job, part).items()):
            if name in _TAKEN or name.startswith(_TAKEN_BEGINNINGS):
                yield Problem(
                    key=f"{CONFIG_KEY}.job.{part}.{name}",
                    value=value,
                    why="torchrun, AWS's SDKs or the node's agent set that variable",
                    fix="Choose another name",
                )


def time_suffices_to_start(settings: StackSettings, root: Path) -> Iterator[Problem]:
    limit, bring_up = settings.job.time_limit_minutes, settings.launch.bring_up_minutes
    if limit <= bring_up:
        yield Problem(
            key=f"{CONFIG_KEY}.job.time_limit_minutes",
            value=limit,
            why=f"the workers end then, and bringing them up may take {bring_up:g} minutes (launch.bring_up_minutes)",
            fix=f"Set it to more than {bring_up:g}, or launch.bring_up_minutes to less",
        )


def checks_fit(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A node is given up after two checks, and then another one must still come up."""
    verify, bring_up = settings.launch.verify_minutes, settings.launch.bring_up_minutes
    if 2 * verify >= bring_up:
        yield Problem(
            key=f"{CONFIG_KEY}.launch.verify_minutes",
            value=verify,
            why=f"two checks of the nodes must fit into the {bring_up:g} minutes of launch.bring_up_minutes",
            fix=f"Set it to less than {bring_up / 2:g}, or launch.bring_up_minutes to more",
        )


RULES = (
    Rule(container_runs_an_own_job, ("job.container", "job.source")),
    Rule(one_kind_of_job, ("job.source", "job.command", "job.train")),
    Rule(source_is_there, ("job.source", "job.command")),
    Rule(batch_splits, ("job.train", "nodes", "job.processes_per_node", "instance_type")),
    Rule(processes_fit, ("job.processes_per_node", "instance_type")),
    Rule(precision_is_the_chips, ("job.train", "instance_type")),
    Rule(corpus_is_for_trainer, ("job.builtin_corpus", "job.train")),
    Rule(variables_have_one_source, ("job.secrets", "job.environment")),
    Rule(variables_are_free, ("job.secrets", "job.environment")),
    Rule(time_suffices_to_start, ("job.time_limit_minutes", "launch.bring_up_minutes")),
    Rule(checks_fit, ("launch.verify_minutes", "launch.bring_up_minutes")),
)
