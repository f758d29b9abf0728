"""What nodes fetch, under its own hash: the bundle they configure themselves from, and the source of the user's job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pulumi
import pulumi_aws as aws

from infra.packaging.archive import Entry, Packed, pack
from infra.scope import Scope
from trainyard.models import layout
from trainyard.models.schemas import schema_text

FOLDERS = ("playbooks", "trainyard", "trainer")
FILES = ("constraints.txt",)
# What only the operator's side reads: a new price or validator is no new code on nodes.
OPERATOR_ONLY = tuple(
    f"trainyard/{name}"
    for name in (
        *("__main__.py", "launcher", "operations"),
        *(f"config/{name}" for name in ("settings", "validators", "catalog.py", "catalog.json", "prices.py")),
        *(f"config/{name}" for name in ("prices.json", "quotas.py", "cost.py", "demand.py", "loader.py")),
        *("models/report.py", "models/schemas.py"),
    )
)
SCHEMA = "schemas/manifest.schema.json"

Kind = Literal["bundle", "job"]
_KEYS: dict[Kind, Callable[[str], str]] = {"bundle": layout.bundle_key, "job": layout.job_source_key}


def pack_bundle(root: Path, more: Mapping[str, Entry] | None = None) -> Packed:
    """The static files of this tree, and `more`. None depends on the stack, so its hash is known before all else."""
    entries = {SCHEMA: Entry(schema_text("manifest").encode()), **(more or {})}
    for folder in FOLDERS:
        assert (root / folder).is_dir(), f"the tree has no folder {folder}/ to bundle"
        for path in (root / folder).rglob("*"):
            relative = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in relative.parts)
            shipped = not hidden and not any(relative.is_relative_to(name) for name in OPERATOR_ONLY)
            if path.is_file() and shipped and path.suffix != ".pyc":
                entries[relative.as_posix()] = Entry(path.read_bytes())
    entries.update({name: Entry((root / name).read_bytes()) for name in FILES})
    return pack(entries)


@dataclass(frozen=True, kw_only=True)
class ArchivesArgs:
    """`archives`: kind -> archive. `folder`: where they wait for the upload, outside what is versioned."""

    scope: Scope
    bucket: pulumi.Input[str]
    archives: Mapping[Kind, Packed]
    folder: Path


class Archives(pulumi.ComponentResource):
    """Objects that stay when a newer one takes their place: a node may be booting from the old one.

    They go at the end with their bucket, or when its lifecycle rule takes them.
    """

    told: dict[Kind, dict[str, pulumi.Input[str]]]  # as trainyard.models.manifest.Archive

    def __init__(self, name: str, args: ArchivesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Archives", name, None, opts)
        self.told = {}
        for kind, packed in args.archives.items():
            stored = aws.s3.BucketObjectv2(
                kind,
                bucket=args.bucket,
                key=_KEYS[kind](packed.sha256),
                source=pulumi.FileAsset(str(packed.store(args.folder))),
                content_type="application/gzip",
                tags=args.scope.own_tags(kind),  # an object bears ten tags at most, so the user's are left out
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
            )
            uri = pulumi.Output.concat("s3://", args.bucket, "/", stored.key)
            self.told[kind] = {"uri": uri, "sha256": packed.sha256}
        self.register_outputs({"archives": self.told})
