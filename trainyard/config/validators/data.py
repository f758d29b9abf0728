"""Validators of the data and the model that the job reads."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainyard.config.settings import StackSettings
from trainyard.config.shared_settings import FSX_MOUNT_POINT
from trainyard.config.training.models import MODEL_PATH, LanguageModelConfig
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem


def one_source_of_data(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The job reads a dataset of the data bucket or a prefix of another bucket, not both."""
    job = settings.job
    if not job.reads_own_bucket:
        return
    if job.dataset is not None:
        reason = f"conflicts with job.data, {job.data}: DATA_URI is one of the two"
        yield invalid_setting("job.dataset", job.dataset, reason, "Remove it, or set job.data to s3")
    if job.builtin_corpus:
        reason = f"the corpus fills a dataset of the data bucket, and the job reads {job.data}"
        yield invalid_setting("job.builtin_corpus", True, reason, "Remove it, or set job.dataset and job.data: s3")


def dataset_named(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A job that reads a dataset names it."""
    job = settings.job
    if job.dataset is not None or job.reads_own_bucket:
        return
    reasons = {
        "job.data is fsx": job.data == "fsx",
        "job.builtin_corpus is true": job.builtin_corpus,
        "the built-in trainer reads a dataset": job.train is not None,
    }
    if reason := next((text for text, applies in reasons.items() if applies), None):
        fix = "Name a dataset of the data bucket, or set job.data to an S3 prefix such as s3://bucket/prefix/"
        yield invalid_setting("job.dataset", None, reason, fix)


def fsx_has_the_dataset(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """FSx imports the dataset that the job reads from it."""
    if settings.job.data == "fsx" and not (settings.fsx and settings.fsx.data_repository):
        reason = (
            "fsx.data_repository is false: the file system does not import the dataset"
            if settings.fsx
            else "the stack has no file system (fsx)"
        )
        yield invalid_setting("job.data", "fsx", reason, "Set fsx.data_repository to true, or job.data to s3")


def kms_keys_used(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """`job.kms_keys` are of buckets that the job reads."""
    job = settings.job
    if job.kms_keys and not job.s3_sources:
        reason = "neither job.data nor job.model is a prefix of another bucket"
        fix = "Remove it: nodes may use the key of the data bucket"
        yield invalid_setting("job.kms_keys", list(job.kms_keys), reason, fix)


def hub_reachable(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """A job that downloads a model from the Hugging Face hub has internet access, and code that downloads it."""
    job, network = settings.job, settings.network
    if not job.reads_hub:
        return
    upload = "Download the model, upload it (trainyard data put FOLDER NAME) and set dataset:NAME"
    if network.existing is None and not network.nat_gateway:
        reason = "without a NAT gateway nodes do not reach the Hugging Face hub"
        yield invalid_setting("job.model", job.model, reason, f"{upload}, or set network.nat_gateway to true")


def model_path_exists(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """The path of the built-in trainer's model can exist on the nodes."""
    job = settings.job
    model = job.train.model if job.train else None
    if not isinstance(model, LanguageModelConfig) or model.path is None:
        return
    key = "job.train.model.path"
    if model.path == MODEL_PATH:
        if job.model is None:
            reason = "job.model is not set"
            yield invalid_setting(key, model.path, reason, "Set job.model, or the path of a folder on the nodes")
    elif not PurePosixPath(model.path).is_absolute():
        reason = "not an absolute path, and nodes have no folder that it could be relative to"
        yield invalid_setting(
            key, model.path, reason, f"Write an absolute path, or {MODEL_PATH} with job.model, such as hf://ORG/NAME"
        )


def fsx_paths_have_a_file_system(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Paths below the mount point of FSx are of a stack with a file system."""
    job = settings.job
    if settings.fsx:
        return
    model = job.train.model if job.train else None
    values = {f"job.environment.{name}": value for name, value in sorted(job.environment.items())}
    values |= {f"job.command.{number}": value for number, value in enumerate(job.command or ())}
    if isinstance(model, LanguageModelConfig) and model.path is not None:
        values["job.train.model.path"] = model.path
    for key, value in values.items():
        if _is_on_fsx(value.rpartition("=")[2]):
            reason = f"{FSX_MOUNT_POINT} is the mount point of FSx for Lustre, and the stack has no file system (fsx)"
            fix = "Add fsx, or set job.data or job.model and read DATA_URI or MODEL_PATH"
            yield invalid_setting(key, value, reason, fix)


def _is_on_fsx(text: str) -> bool:
    path = PurePosixPath(text)
    return path.is_absolute() and path.is_relative_to(FSX_MOUNT_POINT)


VALIDATORS = (
    one_source_of_data,
    dataset_named,
    fsx_has_the_dataset,
    kms_keys_used,
    hub_reachable,
    model_path_exists,
    fsx_paths_have_a_file_system,
)
