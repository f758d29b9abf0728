"""A deployed stack: its buckets, found by tags with or without the Pulumi CLI, its manifest, and its runs' records."""

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.access_problems import region_missing
from trainyard.aws.region import configured_region, require_known_region
from trainyard.aws.s3 import Bucket, find_buckets
from trainyard.config.project import NAME, Project
from trainyard.errors import InputError, Problem
from trainyard.models.health_check import HealthCheckResult
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, split_s3_uri
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.operations.stack_file import deploy_or_correct, stack_region


@dataclass(frozen=True)
class Cluster:
    """One stack in one account and region.

    `manifest_uri`: S3 URI of the manifest where the caller knows it; AWS's tag index lags behind for new buckets.
    `manifest_sha256`: SHA-256 that the manifest must have. `project`: of the stack's file, where it is known.
    """

    stack: str
    region: str
    manifest_uri: str | None = None
    manifest_sha256: str | None = None
    project: Project | None = None

    @classmethod
    def from_environment(
        cls, stack: str, manifest_uri: str | None = None, manifest_sha256: str | None = None, *, project: Project
    ) -> Self:
        """Return the stack in aws:region of its file, else in the configured region.

        Raises InputError when `manifest_uri` is not an S3 URI, AWS_REGION names another region than the file, AWS does
        not have the region, or no region is configured: then a missing file of the stack is the error.
        """
        if manifest_uri is not None and not _is_object_uri(manifest_uri):
            raise InputError(
                [Problem("--manifest", manifest_uri, "not an S3 URI", "Use s3://BUCKET/KEY", "invalid_s3_uri")]
            )
        in_file, in_environment = stack_region(stack, project), os.environ.get("AWS_REGION")
        key, source = ("aws:region", f"the file of stack {stack}") if in_file else ("AWS_REGION", "the environment")
        region = in_file or configured_region()
        if not region:
            project.find_stack_file(stack)
            raise InputError([region_missing()])
        require_known_region(region, key, source)
        if in_file and in_environment and in_file != in_environment:
            reason = f"stack {stack} is in {in_file} (aws:region of its file)"
            fix = f"Set AWS_REGION={in_file}, or unset it"
            raise InputError([Problem("AWS_REGION", in_environment, reason, fix, "region_differs")])
        return cls(stack, region, manifest_uri, manifest_sha256, project)

    def _find_bucket(self, role: str) -> Bucket | None:
        try:
            names = find_buckets(self.region, {tags.STACK: self.stack_tag, tags.ROLE: role})
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(f"cannot list the buckets of stack {self.stack}: {error}") from error
        if len(names) > 1:
            raise RuntimeError(
                f"stack {self.stack} has {len(names)} buckets with tag {tags.ROLE}={role}: {', '.join(sorted(names))}. "
                "Remove the tag from all but one"
            )
        return Bucket(names[0], self.region) if names else None

    @property
    def project_name(self) -> str:
        """The name of the Pulumi project."""
        return self.project.name if self.project else NAME

    @property
    def stack_tag(self) -> str:
        """The value of the tag that all resources of the stack have."""
        return tags.stack_tag(self.project_name, self.stack)

    @cached_property
    def staging(self) -> Bucket | None:
        """The staging bucket, which is deleted with the cluster; None when the stack is not deployed."""
        if self.manifest_uri is not None:
            bucket = Bucket(split_s3_uri(self.manifest_uri)[0], self.region)
            return bucket if bucket.exists() else None
        return self._find_bucket(tags.STAGING_BUCKET)

    @property
    def is_deployed(self) -> bool:
        """Whether the stack has a manifest; without one it has no nodes."""
        return self.staging is not None and self.staging.find(MANIFEST) is not None

    @cached_property
    def data(self) -> Bucket:
        """The data bucket, which outlives the cluster. Raises InputError when the stack has none."""
        is_known = self.manifest_uri is not None or "manifest" in vars(self)  # then it need not be read again
        if is_known or self.is_deployed:
            return Bucket(self.manifest.data_bucket, self.region)  # a bucket of the user (storage.bucket) has no tags
        bucket = self._find_bucket(tags.DATA_BUCKET)
        if bucket is None:
            problem = Problem(
                "--stack",
                self.stack,
                f"the stack has no data bucket in {self.region}",
                f"{deploy_or_correct(self.stack, self.project)}, or correct its region (aws:region of its file, else "
                "AWS_REGION); an existing bucket that the stack uses (storage.bucket) is found only while the stack is "
                "deployed",
                "data_bucket_missing",
            )
            raise InputError([problem])
        return bucket

    def require_manifest(self) -> bytes:
        """Return the manifest's text. Raises InputError when the stack is not deployed."""
        content = self.staging.find(MANIFEST) if self.staging else None
        if content is None:
            problem = Problem(
                "--stack",
                self.stack,
                f"the stack is not deployed in {self.region}: it has no manifest",
                f"{deploy_or_correct(self.stack, self.project)}, or correct its region (aws:region of its file, else "
                "AWS_REGION) or the account (AWS_PROFILE)",
                "stack_not_deployed",
            )
            raise InputError([problem])
        return content

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest. Raises InputError when the stack is not deployed, RuntimeError when the SHA-256 differs."""
        content = self.require_manifest()
        sha256 = hashlib.sha256(content).hexdigest()
        if self.manifest_sha256 not in {None, sha256}:
            raise RuntimeError(
                f"the manifest of stack {self.stack} has SHA-256 {sha256}, not {self.manifest_sha256}: another process "
                f"has changed the stack; run trainyard up -s {self.stack} again"
            )
        return Manifest.model_validate_json(content)

    def with_manifest(self, manifest: Manifest) -> Self:
        """Return the cluster with this manifest instead of the deployed one, for a run with another job."""
        cluster = replace(self)
        cluster.__dict__["manifest"] = manifest  # the cached property
        return cluster

    def current_run(self) -> RunRecord | None:
        """Return the run that was launched last; None when the stack is not deployed or had no launch."""
        content = self.staging.find(CURRENT_RUN) if self.staging else None
        return None if content is None else RunRecord.model_validate_json(content)

    def newest_run(self) -> RunRecord | None:
        """Return the newest run in the data bucket, also after `pulumi destroy`.

        Only a launch writes a run's record: nodes may have written other objects below any id.
        """
        ids = sorted(self.data.folders("runs/"), reverse=True)  # run ids sort by time
        return next((record for each in ids if (record := self.record(each)) is not None), None)

    def record(self, run: str) -> RunRecord | None:
        """Return the record of a run; None when no run has this id."""
        content = self.data.find(RunLayout(run).record)
        record = None if content is None else RunRecord.model_validate_json(content)
        return record if record is not None and record.run == run else None

    def outcome(self, run: str) -> Outcome | None:
        """Return the outcome of a run; None while it is active."""
        content = self.data.find(RunLayout(run).outcome)
        return None if content is None else Outcome.model_validate_json(content)

    def control(self, run: str) -> Control | None:
        """Return the state that the controller has published for a run; None when there is none."""
        content = self.data.find(RunLayout(run).control)
        return None if content is None else Control.model_validate_json(content)

    def health_check_result(self, run: str) -> HealthCheckResult | None:
        """Return the result of the last health check of the run's nodes, if any."""
        content = self.data.find(RunLayout(run).latest_health_check)
        return None if content is None else HealthCheckResult.model_validate_json(content)


def _is_object_uri(uri: str) -> bool:
    try:
        return split_s3_uri(uri)[1] != ""
    except ValueError:
        return False
