"""The Pulumi program: reads the stack's settings, wires the components, exports what the operator needs."""
# ruff: noqa: E402

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the engine puts infra/ there, and the repository's root nowhere

from typing import Any

import pulumi

from contract import layout
from contract.base import InputError
from contract.catalog import catalog
from contract.reading import read_settings
from contract.settings import StackSettings
from infra.bundle import Archives, ArchivesArgs, pack_bundle
from infra.filesystem import FileSystem, FileSystemArgs
from infra.head import Head, HeadArgs
from infra.identity import Identity, IdentityArgs
from infra.image import image_for
from infra.launch import Launch, LaunchArgs
from infra.manifest import ManifestArgs, ManifestObject, manifest_uri
from infra.network import Network, NetworkArgs
from infra.placement import Placement, PlacementArgs
from infra.scope import look_up_scope
from infra.security import Security, SecurityArgs
from infra.source import pack_source
from infra.storage import BucketArgs, DataBucket, StagingBucket
from infra.userdata import user_data
from infra.workers import WorkerGroup, WorkerGroupArgs

RENDEZVOUS_PORT = 29400


def main(root: Path) -> None:
    stack = pulumi.get_stack()
    settings = read_settings(pulumi.Config().get_object("cluster"), root, f"stacks/Pulumi.{stack}.yaml")
    job = settings.job
    bundle = pack_bundle(root)
    source = None if job.source is None else pack_source(root, job.source)
    # Every look-up that can fail stands before the first resource: what is registered earlier is already being made.
    scope = look_up_scope(pulumi.get_project(), stack, settings)
    head_type = catalog().get(settings.head_instance_type)
    assert head_type is not None
    head_image, worker_image = image_for(head_type), image_for(settings.worker_type)

    data = DataBucket("data", BucketArgs(scope=scope))  # looks for an earlier one, and may refuse
    network = Network(
        "network", NetworkArgs(scope=scope, cidr=settings.network.cidr, pin_zone=not settings.network.zone)
    )
    security = Security(
        "security", SecurityArgs(scope=scope, vpc_id=network.vpc_id, efa=settings.efa, fsx=settings.fsx is not None)
    )
    staging = StagingBucket("staging", BucketArgs(scope=scope))
    archives = Archives(
        "archives",
        ArchivesArgs(
            scope=scope,
            bucket=staging.name,
            archives={"bundle": bundle} if source is None else {"bundle": bundle, "job": source},
            folder=root / "build" / "archives",
        ),
    )
    identity = Identity(
        "identity",
        IdentityArgs(
            scope=scope,
            data_bucket_arn=data.arn,
            staging_bucket_arn=staging.arn,
            secrets=list(job.secrets.values()),
        ),
    )
    filesystem = None
    if settings.fsx:
        filesystem = FileSystem(
            "filesystem",
            FileSystemArgs(
                scope=scope,
                subnet_id=network.private_subnet_id,
                security_group_ids=security.fsx_groups,
                capacity_gib=settings.fsx.capacity_gib,
                throughput_mbps_per_tib=settings.fsx.throughput_mbps_per_tib,
            ),
            pulumi.ResourceOptions(depends_on=[security]),  # FSx refuses a group whose Lustre ports are not open yet
        )
    placement = Placement("placement", PlacementArgs(scope=scope)) if settings.placement_group else None

    def boot(role: Any) -> pulumi.Output[str]:
        return staging.name.apply(lambda bucket: user_data(role, manifest_uri(bucket), scope.region, root))

    head = Head(
        "head",
        HeadArgs(
            scope=scope,
            instance_type=head_type.name,
            image_id=head_image,
            root_volume_gib=settings.root_volume_gib,
            subnet_id=network.private_subnet_id,
            security_group_ids=security.node_groups,
            instance_profile=identity.head_profile,
            user_data=boot("head"),
        ),
        pulumi.ResourceOptions(depends_on=[network, security]),  # it needs its way out from its first minute
    )
    workers = WorkerGroup(
        "workers",
        WorkerGroupArgs(
            scope=scope,
            instance_type=settings.worker_type,
            nodes=settings.nodes,
            efa=settings.efa,
            image_id=worker_image,
            root_volume_gib=settings.root_volume_gib,
            subnet_ids=[network.private_subnet_id],
            security_group_ids=security.node_groups + security.efa_groups,
            instance_profile=identity.worker_profile,
            placement_group=placement.group_name if placement else None,
            user_data=boot("worker"),
            grace_seconds=round(settings.launch.bring_up_minutes * 60),
        ),
        pulumi.ResourceOptions(depends_on=[network, security]),
    )
    manifest = ManifestObject(
        "manifest",
        ManifestArgs(
            scope=scope,
            bucket=staging.name,
            content={
                "project": scope.project,
                "stack": scope.stack,
                "account": scope.account,
                "region": scope.region,
                "partition": scope.partition,
                "bundle": {"uri": archives.uris["bundle"], "sha256": bundle.sha256},
                "data_bucket": data.name,
                "staging_bucket": staging.name,
                "head": {"instance": head.instance_id, "address": head.address, "rendezvous_port": RENDEZVOUS_PORT},
                "groups": [group_entry(settings, workers, network)],
                "fsx": {"dns_name": filesystem.dns_name, "mount_name": filesystem.mount_name} if filesystem else None,
                "node": settings.node.model_dump(mode="json"),
                "job": {
                    **job.model_dump(
                        mode="json",
                        include={
                            *("name", "command", "train", "builtin_corpus", "resume"),
                            *("secrets", "environment", "checkpoint_on_request"),
                        },
                    ),
                    "source": {"uri": archives.uris["job"], "sha256": source.sha256} if source else None,
                    "data_uri": pulumi.Output.concat("s3://", data.name, "/", layout.dataset_prefix(job.dataset)),
                },
                "limits": {
                    "bring_up_minutes": settings.launch.bring_up_minutes,
                    "lease_minutes": settings.launch.lease_minutes,
                    "time_limit_minutes": job.time_limit_minutes,
                },
            },
        ),
    )
    built = [network, security, data, staging, archives, identity, filesystem, placement, head, workers, manifest]
    launch = Launch(
        "launch",
        LaunchArgs(scope=scope, manifest=manifest.text, bucket=staging.name),
        pulumi.ResourceOptions(depends_on=[component for component in built if component is not None]),
    )

    pulumi.export("data_bucket", data.name)
    pulumi.export("staging_bucket", staging.name)
    pulumi.export("manifest", staging.name.apply(manifest_uri))
    pulumi.export("head", head.instance_id)
    pulumi.export("groups", [workers.autoscaling_group])
    pulumi.export("launch", launch.result)


def group_entry(settings: StackSettings, workers: WorkerGroup, network: Network) -> dict[str, Any]:
    """A worker group as the manifest tells it (contract.manifest.WorkerGroup)."""
    gpu = settings.worker_type.gpu
    return {
        "name": "workers",
        "autoscaling_group": workers.autoscaling_group,
        "lifecycle_hook": workers.lifecycle_hook,
        "instance_type": settings.instance_type,
        "nodes": settings.nodes,
        "subnets": [network.private_subnet_id],
        "processes_per_node": settings.processes_per_node,
        "gpus": gpu.count if gpu else 0,
        "efa_interfaces": settings.worker_type.efa_interfaces if settings.efa else 0,
    }


try:
    main(ROOT)
except InputError as error:
    raise pulumi.RunError(str(error)) from error
