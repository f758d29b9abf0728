"""Check the source of a custom job and lock its requirements, before capacity is reserved or a node is launched.

The staging bucket holds the results, so that an unchanged source or an unchanged requirements.txt costs two requests.
Its objects expire: a result, a lock or a wheel is used again for MAX_AGE_SECONDS only.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainyard.aws import tags
from trainyard.aws.ec2 import describe_image, tags_of
from trainyard.aws.s3 import Bucket
from trainyard.errors import InputError, Problem
from trainyard.job_source.archive import unpacked
from trainyard.job_source.check import JobSource
from trainyard.job_source.environment import find_environment, image_python
from trainyard.job_source.node_packages import node_packages
from trainyard.job_source.resolution import (
    ON_NODES,
    REQUIREMENTS,
    ToolError,
    hide_credentials,
    pin_name,
    reads_other_files,
)
from trainyard.job_source.trials import installed_wheels, try_dry_run, try_imports
from trainyard.job_source.wheels import lock_wheels
from trainyard.models.layout import (
    WHEELS,
    RunLayout,
    requirements_lock_key,
    source_check_key,
    split_s3_uri,
    wheel_key,
)
from trainyard.models.manifest import Archive, Manifest
from trainyard.models.requirements import RequirementsLock
from trainyard.models.run import RunRecord
from trainyard.operations.cluster import Cluster
from trainyard.operations.dry_run import dry_run_variables, find_node_variable
from trainyard.operations.progress import Display
from trainyard.package_index import PACKAGES, index_options
from trainyard.quantity import quantity

# A launch uses a check, a check uses a lock, and a lock uses wheels, each of at most this age. A wheel is at most 90
# days old when a run starts. It expires after 180 days (infra/components/storage.py): nodes install it until then.
MAX_AGE_SECONDS = 30 * 86400.0
MAX_TRIAL_BYTES = 200 * 1024 * 1024
SUBJECT = "source"


def prepare_source(cluster: Cluster, display: Display) -> Archive | None:
    """Check the source of the manifest's job and lock its requirements; the lock, for the record of a new run.

    None: the job has no source or no requirements.txt, runs in a container, or its requirements are left to the nodes.
    Raises InputError for a source that cannot run, or requirements that cannot be installed.
    """
    if cluster.manifest.job.source is None:
        return None
    return _Preparation(cluster, display).prepare()


def store_lock(cluster: Cluster, run: RunRecord) -> None:
    """Store the locked requirements of a run, if it has any, with the run as requirements.lock."""
    if run.requirements is None:
        return
    bucket, key = split_s3_uri(run.requirements.uri)
    lock = RequirementsLock.model_validate_json(Bucket(bucket, cluster.region).read(key))
    cluster.data.write(RunLayout(run.run).requirements, lock.render().encode())


class _Preparation:
    """One check of the manifest's job."""

    def __init__(self, cluster: Cluster, display: Display) -> None:
        assert cluster.staging is not None, "the manifest is in it"
        self._region, self._staging, self._display = cluster.region, cluster.staging, display
        self._manifest: Manifest = cluster.manifest
        self._archives = cluster.project and cluster.project.archives
        self._environment = find_environment(self._manifest.node.venv, self._image_python())

    def prepare(self) -> Archive | None:
        """See prepare_source."""
        key = source_check_key(_identity(self._check_inputs()))
        if _is_recent(self._staging, key):
            stored = json.loads(self._staging.read(key))["lock"]
            self._display.line(SUBJECT, "unchanged since its last check")
            return Archive.model_validate(stored) if stored else None
        source = JobSource(job=self._manifest.job, archive=self._read_archive(), environment=self._environment)
        source.check_files(None)  # before anything is downloaded
        lock, reference = self._lock(source) if source.resolves_locally else (None, None)
        self._check_modules(source, lock)
        self._try(source, lock)
        self._staging.write(key, json.dumps({"lock": reference and reference.model_dump()}).encode())
        return reference

    def _check_modules(self, source: JobSource, lock: RequirementsLock | None) -> None:
        """Check that the modules that the job imports exist, as far as they are known."""
        if lock is not None:
            source.check_files(frozenset(module for wheel in lock.wheels for module in wheel.modules))
        elif not source.has_requirements:
            source.check_files(frozenset())
        else:
            on_nodes = self._manifest.job.resolve_requirements == "nodes"
            reason = ON_NODES if on_nodes else f"node.venv = {self._manifest.node.venv!r} is not on this machine"
            self._display.line(SUBJECT, f"{REQUIREMENTS} is not checked ({reason}): the nodes resolve it")

    def _image_python(self) -> str | None:
        """Return the Python of the workers' image, from the name of the AMI or of the AMI that it was baked from."""
        image = self._manifest.groups[0].image
        description: Mapping[str, Any] | None = describe_image(self._region, image) if image else None
        if description and (source := tags_of(description).get(tags.SOURCE)):
            description = describe_image(self._region, source)
        return image_python(description.get("Name", "")) if description else None

    def _environment_inputs(self) -> list[Any]:
        """Return what the environment of the nodes, in which the job is checked, depends on."""
        node, environment = self._manifest.node, self._environment
        if environment is None:
            return [node.venv]
        interpreter = environment.interpreter and str(environment.interpreter)
        packages = [package.model_dump() for package in node_packages()] if interpreter is None else None
        return [environment.python, interpreter, sorted(environment.modules), packages, node.package_index]

    def _check_inputs(self) -> list[Any]:
        """Return all that the result of the check depends on."""
        job = self._manifest.job
        assert job.source is not None
        included = {"container", "dry_run", "resolve_requirements", "environment"}
        if job.dry_run is not None:
            included |= {"data", "data_uri", "model", "model_uri", "resume"}
        settings = job.model_dump(mode="json", include=included)
        fsx = job.dry_run and self._manifest.fsx and self._manifest.fsx.mount_point
        return [job.source.sha256, job.command and job.command[0], settings, fsx, self._environment_inputs()]

    def _read_archive(self) -> bytes:
        """Return the archive of the source: the copy that the Pulumi program wrote, else the object in the bucket."""
        archive = self._manifest.job.source
        assert archive is not None
        local = self._archives and self._archives / f"{archive.sha256}.tar"
        if local and local.exists() and hashlib.sha256(content := local.read_bytes()).hexdigest() == archive.sha256:
            return content
        return self._staging.read(split_s3_uri(archive.uri)[1])

    def _lock(self, source: JobSource) -> tuple[RequirementsLock, Archive]:
        """Return the lock of the requirements, and its object in the staging bucket; an unchanged one is used again."""
        requirements = source.files[REQUIREMENTS].decode(errors="replace")
        content = requirements
        if reads_other_files(requirements):
            content = hashlib.sha256(source.archive).hexdigest()
        key = requirements_lock_key(_identity([content, self._environment_inputs()]))
        if _is_recent(self._staging, key):
            text = self._staging.read(key)
            lock = RequirementsLock.model_validate_json(text)
        else:
            lock = self._resolve(source)
            text = lock.model_dump_json().encode()
            self._staging.write(key, text)
        uri = f"s3://{self._staging.name}/{key}"
        return lock, Archive(uri=uri, sha256=hashlib.sha256(text).hexdigest())

    def _resolve(self, source: JobSource) -> RequirementsLock:
        """Resolve the requirements and upload their wheels."""
        environment, index = self._environment, self._manifest.node.package_index
        assert environment is not None
        with TemporaryDirectory() as name:
            work = Path(name)
            options = self._index_options(work / "index")
            with source.resolved(options, index) as (folder, pins):
                if not pins:
                    self._display.line(SUBJECT, f"the nodes' environment satisfies {REQUIREMENTS}")
                    return RequirementsLock(python=environment.python)
                fetched = work / "fetched"
                fetched.mkdir()

                def report(text: str) -> None:
                    self._display.line(SUBJECT, text)

                if torch := next((pin for pin in pins if pin_name(pin) == "torch"), None):
                    text = "replaces the torch that the health check measures, and its NCCL: remove it if possible"
                    report(f"{hide_credentials(torch)} of {REQUIREMENTS} {text}")
                lock = lock_wheels(pins, environment, options, folder, fetched, report)
                self._upload(lock, fetched / "wheels")
        return lock

    def _index_options(self, folder: Path) -> list[str]:
        """Return the options that select node.package_index. Raises InputError if it exists on nodes only."""
        index = self._manifest.node.package_index
        if self._manifest.node.s3_wheels is not None:
            assert index is not None
            return ["--no-index", "--find-links", str(self._download_wheelhouse(index, folder))]
        path = Path((index or "").removeprefix("file://"))
        if path.is_absolute() and not path.exists():
            reason = "this machine does not have it, so it cannot resolve the requirements of the job"
            fix = f"Use an index that this machine reaches, or let nodes resolve them ({ON_NODES})"
            raise InputError([Problem("node.package_index", index, reason, fix, "package_index_unreachable")])
        return index_options(index)

    def _download_wheelhouse(self, uri: str, folder: Path) -> Path:
        """Download the packages of an S3 prefix, except those of the nodes' environment, which are gigabytes."""
        folder.mkdir()
        name, prefix = split_s3_uri(uri)
        installed = {f"{each.name.replace('-', '_')}-{each.version}" for each in node_packages()}
        bucket = Bucket(name, self._region)
        for key in bucket.keys(prefix):
            file = key.rsplit("/", 1)[-1]
            package = "-".join(file.split("-")[:2]).lower().partition("+")[0]
            if file.endswith(PACKAGES) and package not in installed:
                self._display.detail(SUBJECT, f"downloading {file} from {uri}")
                bucket.download(key, folder / file)
        return folder

    def _upload(self, lock: RequirementsLock, folder: Path) -> None:
        newest = time.time() - MAX_AGE_SECONDS
        stored = {each.key for each in self._staging.objects(WHEELS) if each.modified > newest}
        missing = [wheel for wheel in lock.wheels if wheel_key(wheel.sha256, wheel.file) not in stored]
        for wheel in missing:
            self._display.detail(SUBJECT, f"uploading {wheel.file}")
            self._staging.upload(wheel_key(wheel.sha256, wheel.file), folder / wheel.file)
        size = sum(wheel.size for wheel in missing) / 1e6
        count = f"locked {quantity(len(lock.wheels), 'package')}, uploaded {quantity(len(missing), 'wheel')}"
        self._display.line(SUBJECT, f"{count} ({size:.1f} MB)")

    def _try(self, source: JobSource, lock: RequirementsLock | None) -> None:
        """Run the job's dry run, else the imports of its script, where this machine has an environment for it."""
        interpreter = self._environment.local_interpreter() if self._environment else None
        wheels = lock.wheels if lock else ()
        reason = None
        if self._manifest.job.container is not None:
            reason = "it runs in a container"
        elif interpreter is None:
            reason = "this machine does not have the nodes' torch and Python"
        elif source.has_requirements and lock is None:
            reason = f"the nodes resolve its {REQUIREMENTS}"
        elif sum(wheel.size for wheel in wheels) > MAX_TRIAL_BYTES:
            reason = f"its packages exceed {MAX_TRIAL_BYTES // 2**20} MiB"
        if interpreter is None or reason is not None:
            text = "the checks of the source files found no problem; the script was not tried"
            self._display.line(SUBJECT, f"{text}: {reason}")
            return
        with TemporaryDirectory() as name, unpacked(source.archive) as folder:
            files = [Path(name) / wheel.file for wheel in wheels]
            for wheel, file in zip(wheels, files, strict=True):
                self._staging.download(wheel_key(wheel.sha256, wheel.file), file)
            try:
                with installed_wheels(interpreter, files) as packages:
                    self._run(interpreter, folder, packages)
            except ToolError as error:
                reason = f"the wheels cannot be installed here: {error}"
                self._display.line(SUBJECT, f"syntax and imports are valid; not run: {reason}")

    def _run(self, interpreter: Path, folder: Path, packages: str) -> None:
        job = self._manifest.job
        assert job.command is not None
        variables = dict(job.environment)
        if packages:
            variables["PYTHONPATH"] = ":".join(filter(None, (packages, variables.get("PYTHONPATH", ""))))
        node_variable = job.dry_run and find_node_variable(self._manifest)
        if node_variable:
            reason = f"only nodes have the value of {node_variable}"
            self._display.line(SUBJECT, f"job.dry_run is skipped ({reason}): the imports of the script are tried")
        if job.dry_run is not None and node_variable is None:
            self._display.detail(SUBJECT, f"running {' '.join(job.dry_run)}")
            with dry_run_variables(self._manifest, folder) as job_variables:
                problem = try_dry_run(interpreter, folder, job.dry_run, job_variables | variables)
            warning, text = None, "its dry run has succeeded"
        else:
            self._display.detail(SUBJECT, f"trying the imports of {job.command[0]}")
            problem, warning = try_imports(interpreter, folder, job.command[0], variables)
            text = "its imports work"
        if problem is not None:
            raise InputError([problem])
        self._display.line(SUBJECT, warning or text)


def _identity(inputs: list[Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _is_recent(bucket: Bucket, key: str) -> bool:
    stored = next((each for each in bucket.objects(key) if each.key == key), None)
    return stored is not None and stored.modified > time.time() - MAX_AGE_SECONDS
