"""A stack as it is found in the account: by its tags, with or without the Pulumi CLI."""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.s3 import Bucket, client
from trainyard.base import InputError, Problem
from trainyard.models.health_check import Verification
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, split_s3_uri
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, Outcome, RunRecord


@dataclass(frozen=True)
class Cluster:
    """One stack in one account and region."""

    stack: str
    region: str
    manifest_uri: str | None = None  # where the caller knows it: AWS's index of tags lags behind
    manifest_sha256: str | None = None

    @classmethod
    def of(cls, stack: str, manifest_uri: str | None = None, manifest_sha256: str | None = None) -> "Cluster":
        """Raises InputError where no region is set."""
        # botocore reads AWS_DEFAULT_REGION only; Pulumi and the other SDKs say AWS_REGION.
        region = os.environ.get("AWS_REGION") or boto3.session.Session().region_name
        if not region:
            raise InputError(
                [Problem(key="AWS_REGION", value=None, why="no region is set", fix="Set it to the stack's aws:region")]
            )
        return cls(stack, region, manifest_uri, manifest_sha256)

    def _bucket(self, role: str) -> Bucket | None:
        filters = [{"Key": tags.STACK, "Values": [self.stack]}, {"Key": tags.ROLE, "Values": [role]}]
        try:
            answer = client("resourcegroupstaggingapi", self.region).get_resources(
                TagFilters=filters, ResourceTypeFilters=["s3"]
            )
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(f"can't ask AWS for the buckets of stack {self.stack}: {error}") from error
        listed = [item["ResourceARN"].rsplit(":", 1)[-1] for item in answer["ResourceTagMappingList"]]
        names = [name for name in listed if Bucket(name, self.region).exists()]  # the index may list deleted ones
        if len(names) > 1:
            raise RuntimeError(f"stack {self.stack} has several buckets of role {role}: {', '.join(sorted(names))}")
        return Bucket(names[0], self.region) if names else None

    @cached_property
    def staging(self) -> Bucket | None:
        """The bucket that goes with the cluster; None when the stack is not up."""
        if self.manifest_uri is not None:
            named = Bucket(split_s3_uri(self.manifest_uri)[0], self.region)
            return named if named.exists() else None
        return self._bucket(tags.STAGING_BUCKET)

    @property
    def is_up(self) -> bool:
        """Whether there is a manifest: else the stack never came as far as nodes, or went before."""
        return self.staging is not None and self.staging.find(MANIFEST) is not None

    @cached_property
    def data(self) -> Bucket:
        """The bucket that outlives the cluster. Raises InputError when the stack never was up."""
        if self.manifest_uri is not None or (self.staging is not None and self.staging.find(MANIFEST) is not None):
            return Bucket(self.manifest.data_bucket, self.region)  # which may be one that bears no tag of ours
        found = self._bucket(tags.DATA_BUCKET)
        if found is None:
            raise InputError(
                [
                    Problem(
                        key="--stack",
                        value=self.stack,
                        why=f"no data bucket of that stack in {self.region}",
                        fix=f"Bring the stack up first (pulumi up -s {self.stack}), or set AWS_REGION to its region; a "
                        "bucket that you gave it (storage.bucket) is found only while it is up",
                    )
                ]
            )
        return found

    def require_up(self) -> bytes:
        """The manifest's text. Raises InputError when the stack is not up."""
        found = self.staging.find(MANIFEST) if self.staging else None
        if found is None:
            raise InputError(
                [
                    Problem(
                        key="--stack",
                        value=self.stack,
                        why=f"the stack is not up in {self.region}: no manifest",
                        fix=f"pulumi up -s {self.stack}; or set AWS_REGION and AWS_PROFILE to where it is",
                    )
                ]
            )
        return found

    @cached_property
    def manifest(self) -> Manifest:
        """Raises InputError when the stack is not up, RuntimeError when the manifest is not the one that was named."""
        found = self.require_up()
        sha256 = hashlib.sha256(found).hexdigest()
        if self.manifest_sha256 not in {None, sha256}:
            raise RuntimeError(
                f"the manifest of stack {self.stack} has SHA-256 {sha256}, not {self.manifest_sha256}: somebody else "
                "has changed the stack meanwhile; run `pulumi up` again"
            )
        return Manifest.model_validate_json(found)

    def current_run(self) -> RunRecord | None:
        """The run that was launched last, while the cluster is up."""
        found = self.staging.find(CURRENT_RUN) if self.staging else None
        return None if found is None else RunRecord.model_validate_json(found)

    def newest_run(self) -> RunRecord | None:
        """The newest run in the data bucket, also after destroy."""
        newest = max(self.data.folders("runs/"), default=None)  # run ids sort by time
        return None if newest is None else RunRecord.model_validate_json(self.data.read(RunLayout(newest).record))

    def record(self, run: str) -> RunRecord | None:
        found = self.data.find(RunLayout(run).record)
        return None if found is None else RunRecord.model_validate_json(found)

    def outcome(self, run: str) -> Outcome | None:
        found = self.data.find(RunLayout(run).outcome)
        return None if found is None else Outcome.model_validate_json(found)

    def control(self, run: str) -> Control | None:
        found = self.data.find(RunLayout(run).control)
        return None if found is None else Control.model_validate_json(found)

    def verification(self, run: str) -> Verification | None:
        """The last check of the run's nodes."""
        found = self.data.find(RunLayout(run).verification)
        return None if found is None else Verification.model_validate_json(found)
