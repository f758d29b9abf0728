"""`manifest.json`: what Pulumi learned while building, checked against the contract and put where nodes look for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from contract import layout
from contract.manifest import Manifest
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class ManifestArgs:
    """`content`: the fields of contract.manifest.Manifest, with outputs of other components anywhere in it."""

    scope: Scope
    bucket: pulumi.Input[str]
    content: Mapping[str, Any]


class ManifestObject(pulumi.ComponentResource):
    """One object, rewritten whenever the cluster or the job changes. `text` is what it holds."""

    text: pulumi.Output[str]

    def __init__(self, name: str, args: ManifestArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Manifest", name, None, opts)
        text: pulumi.Output[str] = pulumi.Output.from_input(dict(args.content)).apply(_render)
        stored = aws.s3.BucketObjectv2(
            "manifest",
            bucket=args.bucket,
            key=layout.MANIFEST,
            content=text,
            content_type="application/json",
            tags=args.scope.own_tags("manifest"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.text = pulumi.Output.all(text, stored.key).apply(lambda made: str(made[0]))
        self.register_outputs({"key": stored.key})


def manifest_uri(bucket: str) -> str:
    return f"s3://{bucket}/{layout.MANIFEST}"


def _render(content: dict[str, Any]) -> str:
    return Manifest.model_validate(content).model_dump_json(indent=1) + "\n"
