"""`manifest.json`: what Pulumi learned while building, checked against the contract and put where nodes look for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.components.filesystem import FileSystem
from infra.components.head import Head
from infra.components.workers import WorkerGroup
from infra.packaging.bundle import Kind
from infra.scope import Scope
from trainyard.config.catalog import InstanceType
from trainyard.config.settings import StackSettings
from trainyard.models import layout
from trainyard.models.manifest import Manifest

RENDEZVOUS_PORT = 29400
# Of the job's settings, what stands in the manifest as it is.
_OF_JOB = {
    *(
        "name",
        "command",
        "train",
        "builtin_corpus",
        "resume",
        "container",
        "secrets",
        "environment",
        "checkpoint_on_request",
    ),
}


@dataclass(frozen=True, kw_only=True)
class ManifestArgs:
    """`archives`: "bundle", and "job" where the job has a source, as trainyard.models.manifest.Archive.

    `ends`: Unix time at which AWS takes reserved instances away; none: never. It is a fact of the reservation.
    """

    scope: Scope
    settings: StackSettings
    bucket: pulumi.Input[str]
    data_bucket: pulumi.Input[str]
    archives: Mapping[Kind, Mapping[str, pulumi.Input[str]]]
    head: Head
    groups: Sequence[WorkerGroup]
    subnet_id: pulumi.Input[str]
    filesystem: FileSystem | None
    ends: float | None


class ManifestObject(pulumi.ComponentResource):
    """One object, rewritten whenever the cluster or the job changes. `text` is what it holds."""

    text: pulumi.Output[str]

    def __init__(self, name: str, args: ManifestArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Manifest", name, None, opts)
        text: pulumi.Output[str] = pulumi.Output.from_input(_content(args)).apply(_render)
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


def _content(args: ManifestArgs) -> dict[str, Any]:
    """The fields of trainyard.models.manifest.Manifest, with outputs of other components anywhere in it."""
    scope, settings, filesystem = args.scope, args.settings, args.filesystem
    job, dataset = settings.job, layout.dataset_prefix(settings.job.dataset)
    return {
        "project": scope.project,
        "stack": scope.stack,
        "account": scope.account,
        "region": scope.region,
        "partition": scope.partition,
        "bundle": args.archives["bundle"],
        "data_bucket": args.data_bucket,
        "staging_bucket": args.bucket,
        "head": {
            "instance": args.head.instance_id,
            "address": args.head.address,
            "rendezvous_port": RENDEZVOUS_PORT,
        },
        "groups": [_group(args, group) for group in args.groups],
        "fsx": {"dns_name": filesystem.dns_name, "mount_name": filesystem.mount_name} if filesystem else None,
        "node": settings.node.model_dump(mode="json"),
        "job": {
            **job.model_dump(mode="json", include=_OF_JOB),
            "source": args.archives.get("job"),
            "data_uri": pulumi.Output.concat("s3://", args.data_bucket, "/", dataset),
        },
        "limits": {
            "bring_up_minutes": settings.launch.bring_up_minutes,
            "lease_minutes": settings.launch.lease_minutes,
            "time_limit_minutes": job.time_limit_minutes,
            "idle_minutes": settings.guardrails.idle_minutes,
            "verify_minutes": settings.launch.verify_minutes,
        },
    }


def _group(args: ManifestArgs, made: WorkerGroup) -> dict[str, Any]:
    """A worker group as nodes and launch see it (trainyard.models.manifest.WorkerGroup)."""
    settings, plan = args.settings, made.plan
    gpu = settings.worker_type.gpu
    return {
        "name": plan.name,
        "autoscaling_group": made.autoscaling_group,
        "lifecycle_hook": made.lifecycle_hook,
        "instance_type": settings.instance_type,
        "nodes": plan.nodes,
        "subnets": [args.subnet_id],
        "processes_per_node": settings.processes_per_node,
        "gpus": gpu.count if gpu else 0,
        "efa_interfaces": settings.worker_type.efa_interfaces if settings.efa else 0,
        "hardware": _hardware(settings.worker_type),
        "market": plan.market,
        "ends": args.ends if plan.reservation else None,
    }


def _hardware(worker: InstanceType) -> dict[str, Any]:
    """What nodes need of the catalog (trainyard.models.manifest.Hardware)."""
    gpu = worker.gpu
    return {
        "gpus": gpu
        and {
            "model": gpu.model,
            "driver": gpu.chip.driver,
            "nvswitch": worker.nvswitch,
            "nvlink5": worker.nvlink5,
            "clocks": gpu.clocks,
        },
        "disks": worker.instance_store.disks if worker.instance_store else 0,
        "matmul_tflops": worker.matmul_tflops,
        "nvlink_gbs": worker.nvlink_gbs,
        "network_gbs": worker.network_gbs,
    }


def _render(content: dict[str, Any]) -> str:
    return Manifest.model_validate(content).model_dump_json(indent=1) + "\n"
