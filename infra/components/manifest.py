"""The object `manifest.json` in the staging bucket: the configuration of nodes and launch."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.components.archives import Kind
from infra.components.filesystem import FileSystem
from infra.components.termination import TerminationSchedules
from infra.components.vpc import WorkerSubnet
from infra.components.workers import WorkerGroup
from infra.scope import Scope
from trainyard.config.catalog import InstanceType
from trainyard.config.cost import base_usd_per_hour, node_usd_per_hour
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import GroupPlan
from trainyard.models import layout
from trainyard.models.job import job_fields
from trainyard.models.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ManifestArgs:
    """Arguments of ManifestObject.

    `archives` has the fields of trainyard.models.manifest.Archive for "bundle", and for "job" if the job has a source.
    `capacity_start_time`, `capacity_end_time`: Unix times from which and until which nodes may use reserved capacity;
    None: now, never. `validate`: receives the manifest before it is stored, or None if it is not known in the preview.
    """

    scope: Scope
    settings: StackSettings
    bucket: pulumi.Input[str]
    data_bucket: pulumi.Input[str]
    archives: Mapping[Kind, Mapping[str, pulumi.Input[str]]]
    job_role_arn: pulumi.Input[str]
    head_autoscaling_group: pulumi.Input[str]
    termination: TerminationSchedules
    groups: Sequence[WorkerGroup]
    subnets: Sequence[WorkerSubnet]
    placement_group_arn: pulumi.Input[str] | None
    filesystem: FileSystem | None
    capacity_start_time: float | None
    capacity_end_time: float | None
    validate: Callable[[Manifest | None], None]


class ManifestObject(pulumi.ComponentResource):
    """The manifest object. `text` is its content."""

    text: pulumi.Output[str]

    def __init__(self, name: str, args: ManifestArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Manifest", name, None, opts)
        manifest: pulumi.Output[Manifest] = pulumi.Output.from_input(_content(args)).apply(Manifest.model_validate)
        validated: pulumi.Output[bool] = pulumi.Output.from_input(_validate(manifest, args.validate))
        text = pulumi.Output.all(manifest, validated).apply(lambda values: _render(values[0]))
        stored = aws.s3.BucketObjectv2(
            name,
            bucket=args.bucket,
            key=layout.MANIFEST,
            content=text,
            content_type="application/json",
            tags=args.scope.own_tags("manifest"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.text = pulumi.Output.all(text, stored.key).apply(lambda values: str(values[0]))
        self.register_outputs({"key": stored.key})


def manifest_uri(bucket: str) -> str:
    """Return the S3 URI of the manifest in the staging bucket."""
    return f"s3://{bucket}/{layout.MANIFEST}"


def _content(args: ManifestArgs) -> dict[str, Any]:
    """Return the fields of trainyard.models.manifest.Manifest; values may be outputs."""
    scope, settings, filesystem = args.scope, args.settings, args.filesystem
    job = settings.job
    return {
        "project": scope.project,
        "stack": scope.stack,
        "account": scope.account,
        "region": scope.region,
        "partition": scope.partition,
        "bundle": args.archives["bundle"],
        "data_bucket": args.data_bucket,
        "staging_bucket": args.bucket,
        "job_role_arn": args.job_role_arn,
        "head_autoscaling_group": args.head_autoscaling_group,
        "termination": {"schedule_group": args.termination.schedule_group, "role_arn": args.termination.role_arn},
        "spares": settings.spares,
        "groups": [_group(args, group) for group in args.groups],
        "base_usd_per_hour": base_usd_per_hour(settings),
        "fsx": filesystem
        and {"dns_name": filesystem.dns_name, "mount_name": filesystem.mount_name, "efa": filesystem.efa},
        "node": settings.node.model_dump(mode="json"),
        "job": job_fields(job, args.archives.get("job"), lambda name: _dataset_uri(args, name)),
        "limits": {
            "startup_timeout_minutes": settings.launch.startup_timeout_minutes,
            "capacity_wait_minutes": settings.capacity.wait_minutes,
            "lease_minutes": settings.launch.lease_minutes,
            "idle_timeout_minutes": settings.guardrails.idle_timeout_minutes,
            "health_check_timeout_minutes": settings.launch.health_check_timeout_minutes,
            "smaller_sizes": list(settings.smaller_sizes),
            "max_startup_replacements": settings.launch.max_startup_replacements,
            "replacement_minutes": settings.launch.replacement_minutes,
            "lock_results_days": settings.storage.lock_results_days,
            **job.limits,
        },
    }


def _dataset_uri(args: ManifestArgs, name: str) -> pulumi.Output[str]:
    """Return the S3 prefix of a dataset of the data bucket."""
    return pulumi.Output.concat("s3://", args.data_bucket, "/", layout.dataset_prefix(name))


def _group(args: ManifestArgs, group: WorkerGroup) -> dict[str, Any]:
    """Return the fields of trainyard.models.manifest.WorkerGroup."""
    settings, plan = args.settings, group.plan
    gpu = settings.worker_type.gpu
    first, *others = settings.types_of(plan)
    return {
        "name": plan.name,
        "autoscaling_group": group.autoscaling_group,
        "lifecycle_hook": group.lifecycle_hook,
        "instance_type": first.name,
        "other_instance_types": {entry.name: _disks(entry) for entry in others},
        "image": group.image_id,
        "nodes": plan.nodes,
        "max_size": group.max_size,
        "subnets": [{"id": subnet.id, "zone": subnet.zone} for subnet in args.subnets],
        "reservation": plan.reservation,
        "reserve": settings.reserves_capacity(plan),
        "placement_group_arn": (
            args.placement_group_arn if plan.reservation or settings.in_placement_group(plan) else None
        ),
        "node_usd_per_hour": node_usd_per_hour(settings, plan),
        "processes_per_node": settings.processes_per_node,
        "gpus": gpu.count if gpu else 0,
        "efa_interfaces": settings.worker_type.efa_interfaces if settings.efa else 0,
        "hardware": _hardware(settings.worker_type),
        "instance_digest": _instance_digest(settings, plan),
        "market": plan.market,
        "capacity_start_time": args.capacity_start_time if plan.reservation else None,
        "capacity_end_time": args.capacity_end_time if plan.reservation else None,
    }


def _instance_digest(settings: StackSettings, plan: GroupPlan) -> str:
    """Return the SHA-256 of the settings of the launch template that running instances cannot adopt."""
    content = {
        "types": [entry.name for entry in settings.types_of(plan)],
        "market": plan.market,
        "efa": settings.efa,
        "image": settings.image,
        "root_volume": [settings.root_volume_gib, settings.root_volume_throughput],
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _hardware(worker: InstanceType) -> dict[str, Any]:
    """Return the fields of trainyard.models.manifest.Hardware, from the catalog."""
    gpu = worker.gpu
    return {
        "gpus": gpu
        and {
            "model": gpu.model,
            "driver": gpu.specs.driver,
            "nvswitch": worker.nvswitch,
            "nvlink5": worker.nvlink5,
            "clocks": gpu.clocks,
        },
        "disks": _disks(worker),
        "min_matmul_tflops": worker.min_matmul_tflops,
        "min_nvlink_gbs": worker.min_nvlink_gbs,
        "min_network_gbs": worker.min_network_gbs,
    }


def _disks(entry: InstanceType) -> int:
    return entry.instance_store.disks if entry.instance_store else 0


async def _validate(manifest: pulumi.Output[Manifest], validate: Callable[[Manifest | None], None]) -> bool:
    validate(await manifest.future() if await manifest.is_known() else None)
    return True


def _render(manifest: Manifest) -> str:
    return manifest.model_dump_json(indent=1) + "\n"
