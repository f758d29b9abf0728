"""A stack as it is found in the account: by its tags, with or without the Pulumi CLI."""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from contract.base import InputError, Problem
from contract.layout import CURRENT_RUN, MANIFEST, RunLayout
from contract.manifest import Manifest
from contract.objects import Bucket, client
from contract.run import Control, Outcome, RunRecord

STACK_TAG, ROLE_TAG = "trainyard:stack", "trainyard:role"


@dataclass(frozen=True)
class Cluster:
    """One stack in one account and region."""

    stack: str
    region: str

    @classmethod
    def of(cls, stack: str) -> "Cluster":
        """Raises InputError where no region is set."""
        # botocore reads AWS_DEFAULT_REGION only; Pulumi and the other SDKs say AWS_REGION.
        region = os.environ.get("AWS_REGION") or boto3.session.Session().region_name
        if not region:
            raise InputError(
                [Problem(key="AWS_REGION", value=None, why="no region is set", fix="Set it to the stack's aws:region")]
            )
        return cls(stack, region)

    def _bucket(self, role: str) -> Bucket | None:
        filters = [{"Key": STACK_TAG, "Values": [self.stack]}, {"Key": ROLE_TAG, "Values": [role]}]
        try:
            answer = client("resourcegroupstaggingapi", self.region).get_resources(
                TagFilters=filters, ResourceTypeFilters=["s3"]
            )
        except (BotoCoreError, ClientError) as error:
            raise RuntimeError(f"can't ask AWS for the buckets of stack {self.stack}: {error}") from error
        names = [item["ResourceARN"].rsplit(":", 1)[-1] for item in answer["ResourceTagMappingList"]]
        if len(names) > 1:
            raise RuntimeError(f"stack {self.stack} has several buckets of role {role}: {', '.join(sorted(names))}")
        return Bucket(names[0], self.region) if names else None

    @cached_property
    def staging(self) -> Bucket | None:
        """The bucket that goes with the cluster; None when the stack is not up."""
        return self._bucket("staging-bucket")

    @cached_property
    def data(self) -> Bucket:
        """The bucket that outlives the cluster. Raises InputError when the stack never was up."""
        found = self._bucket("data-bucket")
        if found is None:
            raise InputError(
                [
                    Problem(
                        key="--stack",
                        value=self.stack,
                        why=f"no data bucket of that stack in {self.region}",
                        fix=f"Bring the stack up first (pulumi up -s {self.stack}), or set AWS_REGION to its region",
                    )
                ]
            )
        return found

    @cached_property
    def manifest(self) -> Manifest:
        """Raises InputError when the stack is not up."""
        found = self.staging.find(MANIFEST) if self.staging else None
        if found is None:
            raise InputError(
                [
                    Problem(
                        key="--stack",
                        value=self.stack,
                        why=f"the stack is not up in {self.region}: no manifest",
                        fix=f"pulumi up -s {self.stack}",
                    )
                ]
            )
        return Manifest.model_validate_json(found)

    def current_run(self) -> RunRecord | None:
        """The run that was launched last, while the cluster is up."""
        found = self.staging.find(CURRENT_RUN) if self.staging else None
        return None if found is None else RunRecord.model_validate_json(found)

    def newest_run(self) -> RunRecord | None:
        """The newest run in the data bucket, also after destroy."""
        runs = sorted(key for key in self.data.keys("runs/") if key.count("/") == 2 and key.endswith("/run.json"))
        return RunRecord.model_validate_json(self.data.read(runs[-1])) if runs else None

    def outcome(self, run: str) -> Outcome | None:
        found = self.data.find(RunLayout(run).outcome)
        return None if found is None else Outcome.model_validate_json(found)

    def control(self, run: str) -> Control | None:
        found = self.data.find(RunLayout(run).control)
        return None if found is None else Control.model_validate_json(found)

    @property
    def autoscaling(self) -> Any:
        return client("autoscaling", self.region)
