"""Bundle and job source in the staging bucket, stored under their SHA-256."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.packaging.archive import Packed
from infra.scope import Scope
from trainyard.models import layout

Kind = Literal["bundle", "job"]
_KEYS: dict[Kind, Callable[[str], str]] = {"bundle": layout.bundle_key, "job": layout.job_source_key}


@dataclass(frozen=True, kw_only=True)
class ArchivesArgs:
    """Arguments of Archives. The engine uploads the files from `folder`."""

    scope: Scope
    bucket: pulumi.Input[str]
    archives: Mapping[Kind, Packed]
    folder: Path


class Archives(pulumi.ComponentResource):
    """Archives, retained when a new version replaces them: a node may be booting from the old version.

    A lifecycle rule expires them, and they are deleted with their bucket.
    """

    references: dict[Kind, dict[str, pulumi.Input[str]]]  # fields of trainyard.models.manifest.Archive

    def __init__(self, name: str, args: ArchivesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Archives", name, None, opts)
        self.references = {}
        for kind, packed in args.archives.items():
            stored = aws.s3.BucketObjectv2(
                f"{name}-{kind}",
                bucket=args.bucket,
                key=_KEYS[kind](packed.sha256),
                source=pulumi.FileAsset(str(packed.store(args.folder))),
                content_type="application/x-tar",
                tags=args.scope.own_tags(kind),  # an object has at most ten tags, so the user's are omitted
                opts=child_options(self, kind, retain_on_delete=True),
            )
            uri = pulumi.Output.concat("s3://", args.bucket, "/", stored.key)
            self.references[kind] = {"uri": uri, "sha256": packed.sha256}
        self.register_outputs({"archives": self.references})
