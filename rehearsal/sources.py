"""The data and the model that the job reads: files of the user, or a substitute, in the emulated account."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml

from trainyard.aws.s3 import Bucket
from trainyard.config import CONFIG_KEY
from trainyard.config.field_types import DATASET_SCHEME
from trainyard.config.project import Project
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.models.layout import split_s3_uri
from trainyard.models.report import Substitution
from trainyard.operations.builtin_corpus import upload_corpus
from trainyard.operations.data import files_of
from trainyard.quantity import quantity

REHEARSED_MODEL = "rehearsed-model"  # dataset of a model that nodes read from a folder or from the Hugging Face hub
SMALL_MODEL_BYTES = 256 * 2**20  # a larger model is shrunk
SMALL_VOCABULARY = 512  # of a shrunk model on the built-in corpus: 256 bytes, and special tokens
SHRINK_TIMEOUT_SECONDS = 600
UPLOAD_TIMEOUT_SECONDS = 3600
SOURCES_STACK_FILE = "sources.yaml"  # the stack file as it is rehearsed, for `trainyard data put`


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Folders of the user: `data` for DATA_URI, `model` with config.json for the job's model; None: a substitute."""

    data: Path | None = None
    model: Path | None = None


def check_folder(option: str, path: Path | None) -> Path | None:
    """Return the absolute path of a folder with files. Raises InputError."""
    if path is None:
        return None
    if not path.is_dir() or not files_of(path):
        reason = "has no files" if path.is_dir() else "is not a folder"
        raise InputError([Problem(option, str(path), reason, "Name a folder with files", "folder_empty")])
    return path.resolve()


def folder_bytes(folder: Path | None) -> int:
    """Return the size of the files in a folder; 0 without one."""
    return sum(path.stat().st_size for path in files_of(folder)) if folder else 0


def is_small_model(folder: Path) -> bool:
    """Return whether a folder has weights and is small enough to be rehearsed as it is."""
    has_weights = any(any(folder.glob(pattern)) for pattern in ("model*.safetensors", "pytorch_model*.bin"))
    return has_weights and folder_bytes(folder) <= SMALL_MODEL_BYTES


def shrink_model(
    model: Mapping[str, Any] | None, folder: Path | None, vocabulary: int | None, output: Path | None = None
) -> dict[str, Any]:
    """Run trainer.shrink_model; its arguments and result are those of its Request and Result.

    It checks the model at full size first. Raises InputError with what transformers refuses.
    """
    request = {"model": model, "folder": folder and str(folder), "vocabulary": vocabulary}
    process = subprocess.run(
        [sys.executable, "-m", "trainer.shrink_model"],
        input=json.dumps({**request, "output": output and str(output)}),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=SHRINK_TIMEOUT_SECONDS,
        check=False,
    )
    lines = process.stdout.strip().splitlines() or [""]
    if process.returncode == 2:
        problems = [Problem(**each) for each in json.loads(lines[-1])]
        prefix = f"{CONFIG_KEY}.job.train" if model is not None else f"{CONFIG_KEY}.job"
        raise InputError(
            [
                Problem(each.key.replace("config", prefix, 1), each.value, each.reason, each.fix, each.code)
                for each in problems
            ]
        )
    if process.returncode:
        raise RuntimeError(f"trainer.shrink_model failed: {process.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def provide_sources(
    sources: Sources, settings: StackSettings, config: Mapping[str, Any], stack: str, project: Project
) -> Iterator[Substitution]:
    """Upload what the job reads to where the stack expects it in the account of the environment. Yields substitutions.

    Call it after the buckets of the settings were created. `project` is that of the stack.
    """
    folder = project.rehearsal(stack)
    file = folder / SOURCES_STACK_FILE
    file.write_text(yaml.safe_dump({"config": dict(config)}))
    job = settings.job
    if job.reads_own_bucket:
        yield _provide_prefix(job.data, sources.data, job.kms_keys)
    elif sources.data and job.dataset:
        _put_dataset(sources.data, job.dataset, stack, project, file)
        yield _provided(f"the dataset {job.dataset}", sources.data)
    if sources.model and job.model:
        model, text = sources.model, f"the files of {sources.model}"
        if not is_small_model(model):
            model = folder / "model"
            # The tokenizer of a custom job is that of the full model.
            vocabulary = SMALL_VOCABULARY if job.train is not None and sources.data is None else None
            shrunk = shrink_model(None, sources.model, vocabulary, model)
            text = f"{shrunk['architecture']} with {shrunk['shrunk_parameters']:,} new weights"
        if name := job.model_dataset:
            _put_dataset(model, name, stack, project, file)
        else:
            _provide_prefix(job.model, model, job.kms_keys)
        yield Substitution(original=f"the model {job.model}", replacement=text, reason="a CPU is slower than a GPU")


def _provided(original: str, folder: Path) -> Substitution:
    count = quantity(len(files_of(folder)), "file")
    replacement = f"{count} of {folder}"
    return Substitution(original=original, replacement=replacement, reason="set with --data")


def _put_dataset(folder: Path, name: str, stack: str, project: Project, file: Path) -> None:
    """Run `trainyard data put` as an operator does. Raises RuntimeError with its error message."""
    trainyard = [sys.executable, "-m", "trainyard", "-C", str(project.folder)]
    command = [*trainyard, "data", "put", str(folder), name, "--stack", stack]
    process = subprocess.run(
        [*command, "--file", str(file)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=UPLOAD_TIMEOUT_SECONDS,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"trainyard data put failed: {process.stderr.strip().rpartition('trainyard: ')[2]}")


def _provide_prefix(uri: str, folder: Path | None, keys: Sequence[str]) -> Substitution:
    """Upload a folder, or the built-in corpus, below a prefix, encrypted with the first key if there is one."""
    name, prefix = split_s3_uri(uri)
    s3 = boto3.client("s3")
    if keys:
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": keys[0]}}
        s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": [rule]})
    if folder is None:
        upload_corpus(Bucket(name, s3.meta.region_name), prefix, lambda text: None)
        reason = "the emulated account does not contain them; --data names a folder of yours"
        return Substitution(original=f"the objects below {uri}", replacement="the built-in corpus", reason=reason)
    for path in files_of(folder):
        s3.upload_file(str(path), name, prefix + path.relative_to(folder).as_posix())
    return _provided(f"the objects below {uri}", folder)


def model_source(name: str) -> str:
    """Return the value of job.model for a dataset."""
    return f"{DATASET_SCHEME}{name}"
