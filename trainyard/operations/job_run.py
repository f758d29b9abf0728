"""`trainyard run`: start a job on a deployed stack, on its nodes if they are kept, without the Pulumi engine."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from infra.packaging.archive import Packed
from infra.packaging.source import pack_source
from trainyard.config import CONFIG_KEY
from trainyard.config.dotted_keys import set_value
from trainyard.config.loader import load_settings
from trainyard.config.project import Project
from trainyard.config.settings import StackSettings
from trainyard.config.stack_config import read_config
from trainyard.config.validation_errors import invalid_setting
from trainyard.config.validators import JOB_VALIDATORS, validate
from trainyard.errors import InputError, Problem
from trainyard.models.job import job_fields
from trainyard.models.layout import dataset_prefix, job_source_key
from trainyard.models.manifest import Job, Manifest
from trainyard.models.run import LaunchResult
from trainyard.operations.cluster import Cluster
from trainyard.operations.kept_rehearsal import current_kept_rehearsal, write_stack_settings
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.progress import Display

# The keys of the two kinds of jobs: a file with keys of one kind replaces a job of the other kind.
_TRAINER_KEYS, _CUSTOM_KEYS = frozenset(["train"]), frozenset(["source", "command", "container"])


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Changes of the stack file's job for one run.

    `file`: a YAML file with keys of `job`, which replace those of the stack file. `arguments`: those of the script, or
    KEY=VALUE settings of the built-in trainer. `stack_file`: None for that of the stack.
    """

    file: Path | None = None
    arguments: Sequence[str] = ()
    stack_file: Path | None = None


def run_job(
    cluster: Cluster, project: Project, options: JobOptions, launch_options: LaunchOptions, display: Display
) -> LaunchResult:
    """Start a new run of the job on the deployed cluster. Raises InputError, and LaunchError as Launch does."""
    deployed = cluster.manifest
    read = read_settings(cluster.stack, project, _with_rehearsed_stack_file(cluster.stack, project, options))
    settings = with_deployed_nodes(read, deployed, project.folder, display)
    job, archive = settings.job, None
    if job.source is not None:
        archive = pack_source(project.folder, job.source, job.script)
    manifest = create_manifest(deployed, settings, archive)
    if archive is not None:
        upload_source(cluster, archive)
    return Launch(cluster.with_manifest(manifest), display, launch_options).start()


def _with_rehearsed_stack_file(stack: str, project: Project, options: JobOptions) -> JobOptions:
    """Use the stack file as it is rehearsed, in the shell of a kept rehearsal.

    The keys of the job file are changed for the rehearsal too, such as the size of a model. The arguments are not.
    """
    if options.stack_file is not None or (kept := current_kept_rehearsal(stack, project)) is None:
        return options
    changes = _read_job_file(options.file) if options.file is not None else {}
    keys = {f"job.{key}": value for key, value in {**dict.fromkeys(_replaced_keys(changes)), **changes}.items()}
    return replace(options, file=None, stack_file=write_stack_settings(kept, project, keys, options.file))


def read_settings(stack: str, project: Project, options: JobOptions) -> StackSettings:
    """Return the settings of the stack file with the changes of the job. Raises InputError."""
    path = options.stack_file or project.find_stack_file(stack)
    config = read_config(path, path.name)
    raw = copy.deepcopy(config.get(CONFIG_KEY))
    if isinstance(raw, dict) and isinstance(raw.get("job"), dict):
        raw["job"] = change_job(raw["job"], options)
    return load_settings(raw, project.folder, str(options.file or path.name))


def with_deployed_nodes(settings: StackSettings, deployed: Manifest, root: Path, display: Display) -> StackSettings:
    """Return the settings with the number and the type of the deployed nodes, and display what differs.

    `root` is the folder of Pulumi.yaml. Raises InputError for a job that does not fit the deployed nodes.
    """
    nodes = {"nodes": deployed.job_nodes, "spares": deployed.spares, "instance_type": deployed.groups[0].instance_type}
    for key, value in nodes.items():
        if (other := getattr(settings, key)) != value:
            text = f"{key} is {other} in the stack file and {value} in the deployed stack, which the run uses"
            display.line("stack", f"{text}: pulumi up changes it")
    changed = settings.model_copy(update=nodes)
    if problems := validate(changed, root, JOB_VALIDATORS):
        raise InputError(problems)
    return changed


def change_job(job: dict[str, Any], options: JobOptions) -> dict[str, Any]:
    """Return the job with the keys of the file and the arguments. Raises InputError."""
    changes = _read_job_file(options.file) if options.file is not None else {}
    replaced = _replaced_keys(changes)
    changed = {key: value for key, value in job.items() if key not in replaced} | changes
    if not options.arguments:
        return changed
    if changed.get("train") is not None:
        return {**changed, "train": _change_trainer(changed["train"], options.arguments)}
    return {**changed, "command": [*(changed.get("command") or [])[:1], *options.arguments]}


def _replaced_keys(changes: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of the other kind of job than that of the changes."""
    return (_CUSTOM_KEYS if changes.keys() & _TRAINER_KEYS else frozenset()) | (
        _TRAINER_KEYS if changes.keys() & _CUSTOM_KEYS else frozenset()
    )


def _read_job_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        fix = "Name a YAML file with keys of `job` of the stack file"
        raise InputError([Problem("--job-file", str(file), str(error), fix, "job_file_unreadable")]) from None
    if not isinstance(content, dict):
        fix = "Write keys of `job` of the stack file at its top level, such as command"
        raise InputError(
            [Problem("--job-file", str(file), "the file is not a YAML mapping", fix, "job_file_no_mapping")]
        )
    return content


def _change_trainer(train: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the built-in trainer with KEY=VALUE changes. Raises InputError."""
    changed: dict[str, Any] = copy.deepcopy(train) if isinstance(train, dict) else {}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if not separator or key.endswith(".") or not key or not set_value(changed, key, yaml.safe_load(value)):
            reason = "the arguments of the built-in trainer are KEY=VALUE, with a key of job.train"
            fix = "Write, for example, -- steps=100 optimizer.learning_rate=0.001"
            raise InputError([Problem("ARGUMENTS", argument, reason, fix, "invalid_argument")])
    return changed


def create_manifest(deployed: Manifest, settings: StackSettings, archive: Packed | None) -> Manifest:
    """Return the deployed manifest with the job of these settings.

    Raises InputError for a job that needs other software or permissions than the deployed stack has.
    """
    spec, source = settings.job, None
    if archive is not None:
        source = {"uri": f"s3://{deployed.staging_bucket}/{job_source_key(archive.sha256)}", "sha256": archive.sha256}
    fields = job_fields(spec, source, lambda name: f"s3://{deployed.data_bucket}/{dataset_prefix(name)}")
    job = Job.model_validate(fields)
    limits = deployed.limits.model_copy(update=spec.limits)
    processes = {"processes_per_node": settings.processes_per_node}
    groups = tuple(group.model_copy(update=processes) for group in deployed.groups)
    manifest = deployed.model_copy(update={"job": job, "limits": limits, "groups": groups})
    _require_deployed(deployed, manifest, spec.s3_sources)
    return manifest


def _require_deployed(deployed: Manifest, manifest: Manifest, s3_sources: Mapping[str, str]) -> None:
    """Raise InputError for parts of the job that only `pulumi up` makes available to the nodes."""
    problems = []
    fix = f"Apply it first: trainyard up -s {deployed.stack}"
    if manifest.job.container != deployed.job.container:
        reason = f"the nodes have the image of the deployed stack, {deployed.job.container}"
        problems.append(invalid_setting("job.container", manifest.job.container, reason, fix, "not_deployed"))
    elif manifest.node_digest() != deployed.node_digest():
        reason = "the nodes mount the data of the deployed stack"
        problems.append(invalid_setting("job.data", manifest.job.data_uri, reason, fix, "not_deployed"))
    readable = tuple(uri for uri in (deployed.job.data_uri, deployed.job.model_uri) if uri is not None)
    for key, uri in s3_sources.items():
        if not uri.startswith(readable):
            reason = "the nodes have no permission to read this prefix"
            problems.append(invalid_setting(key, uri, reason, fix, "not_deployed"))
    for key in manifest.job.kms_keys:
        if key not in deployed.job.kms_keys:
            reason = "the nodes have no permission to decrypt with this key"
            problems.append(invalid_setting("job.kms_keys", key, reason, fix, "not_deployed"))
    for variable, name in manifest.job.secrets.items():
        if name not in deployed.job.secrets.values():
            reason = "the nodes have no permission to read this parameter"
            problems.append(invalid_setting(f"job.secrets.{variable}", name, reason, fix, "not_deployed"))
    if problems:
        raise InputError(problems)


def upload_source(cluster: Cluster, archive: Packed) -> None:
    """Upload the archive of the job's source to the staging bucket, unless it exists."""
    key = job_source_key(archive.sha256)
    assert cluster.staging is not None
    if cluster.staging.find(key) is None:
        cluster.staging.write(key, archive.data)
