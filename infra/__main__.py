"""The Pulumi program: reads the settings of the stack, creates the components and exports the outputs."""
# ruff: noqa: E402

import gc

gc.disable()  # the SDK's classes are never garbage; looking for it takes a third of a preview (benchmarks/preview.py)

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the engine adds infra/ only

import pulumi

from infra import outputs
from infra.components.archives import Archives, ArchivesArgs, Kind
from infra.components.filesystem import FileSystem, FileSystemArgs
from infra.components.guardrails import Guardrails, GuardrailsArgs
from infra.components.head import Head, HeadArgs
from infra.components.identity import Identity, IdentityArgs
from infra.components.key import StackKey, StackKeyArgs
from infra.components.launch import Launch, LaunchArgs
from infra.components.manifest import ManifestArgs, ManifestObject, manifest_uri
from infra.components.network import create_network
from infra.components.placement import Placement, PlacementArgs
from infra.components.storage import DataArgs, DataBucket, StagingArgs, StagingBucket
from infra.components.workers import WorkerGroup, WorkerGroupArgs
from infra.lookups.account import look_up_account, make_scope, zone_is_default
from infra.lookups.budget import budgets_allowed
from infra.lookups.errors import access_error
from infra.lookups.image import look_up_image
from infra.lookups.instance_type import compare_with_catalog
from infra.lookups.retained import look_up_retained
from infra.packaging.archive import Packed
from infra.packaging.bundle import pack_bundle
from infra.packaging.source import pack_source
from infra.packaging.user_data import Role, user_data
from infra.validators.account import capacity_end_time, capacity_start_time, validate_account
from infra.validators.credentials import expiring_credentials
from trainyard.config.cost import max_run_usd
from trainyard.config.loader import load_settings
from trainyard.errors import InputError

if not gc.get_freeze_count():  # tests run this program many times in one process
    gc.freeze()
gc.enable()


def main(root: Path) -> None:
    """Create all resources of the stack. Raises InputError for invalid settings."""
    stack = pulumi.get_stack()
    settings = load_settings(pulumi.Config().get_object("cluster"), root, f"stacks/Pulumi.{stack}.yaml")
    job, storage = settings.job, settings.storage
    packed: dict[Kind, Packed] = {"bundle": pack_bundle(root)}
    if job.source:
        packed["job"] = pack_source(root, job.source)
    # Every lookup that can fail precedes the first resource: the engine creates resources as they are registered.
    facts = look_up_account(settings, stack)
    retained = look_up_retained(stack)
    validate_account(settings, facts, retained.is_up)
    if warning := expiring_credentials(os.environ, settings, datetime.now(UTC)):
        pulumi.log.warn(warning)
    for entry in {entry.name: entry for plan in settings.groups for entry in settings.types_of(plan)}.values():
        compare_with_catalog(entry)
    head_image, worker_image = (
        look_up_image(name, settings.root_volume_gib) for name in (settings.head_image, settings.worker_image)
    )
    has_budget = settings.guardrails.budget and budgets_allowed(stack)
    scope = make_scope(pulumi.get_project(), stack, settings, facts)

    key = StackKey("key", StackKeyArgs(scope=scope, existing=storage.kms_key, retained=retained.key))
    data = DataBucket(
        "data",
        DataArgs(
            scope=scope,
            existing=storage.bucket,
            retained=retained.bucket,
            key_arn=key.arn,
            noncurrent_version_days=storage.noncurrent_version_days,
            archive_after_days=storage.archive_after_days,
        ),
    )
    staging = StagingBucket("staging", StagingArgs(scope=scope))
    archives = Archives(
        "archives",
        ArchivesArgs(scope=scope, bucket=staging.name, archives=packed, folder=root / "build" / "archives"),
    )
    identity = Identity(
        "identity",
        IdentityArgs(
            scope=scope,
            data_bucket_arn=data.arn,
            staging_bucket_arn=staging.arn,
            key_arn=key.arn,
            secrets=list(job.secrets.values()),
            wheels=settings.node.s3_wheels,
            image=settings.ecr_image,
        ),
    )
    zones, pin_zone = facts.worker_zones(settings), zone_is_default(settings, facts)
    network = create_network(scope, settings, zones, pin_zone, key.service_arn)
    filesystem = None
    if settings.fsx:
        filesystem = FileSystem(
            "filesystem",
            FileSystemArgs(
                scope=scope,
                settings=settings.fsx,
                subnet_id=network.subnet_id,
                # The group of EFA allows all traffic within it: an EFA-enabled file system requires that.
                security_group_ids=[
                    *network.security.fsx_groups,
                    *(network.security.efa_groups if settings.fsx.efa else ()),
                ],
                key_arn=key.arn,
                data_bucket=data.name,
            ),
            # FSx requires open Lustre ports, and is deleted before the linked bucket.
            pulumi.ResourceOptions(depends_on=[network.security, data]),
        )
    # A reservation places its instances itself: in a group that it was not created in, some would not fit.
    reservation = facts.reservation or facts.held
    own_group = reservation is None and any(map(settings.in_placement_group, settings.groups))
    placement = Placement("placement", PlacementArgs(scope=scope)) if own_group else None
    reserved = (reservation.placement_group, reservation.placement_group_arn) if reservation else (None, None)
    placement_group, placement_group_arn = (placement.group_name, placement.group_arn) if placement else reserved

    def boot(role: Role, group: str | None = None) -> pulumi.Output[str]:
        return staging.name.apply(lambda bucket: user_data(role, group, manifest_uri(bucket), scope.region, root))

    after_network = pulumi.ResourceOptions(depends_on=network.dependencies)  # nodes need network access at boot
    head = Head(
        "head",
        HeadArgs(
            scope=scope,
            instance_type=settings.head_instance_type,
            image=head_image,
            root_volume_gib=settings.root_volume_gib,
            subnet_id=network.subnet_id,
            security_group_ids=network.security.node_groups,
            instance_profile=identity.head_profile,
            key_arn=key.arn,
            user_data=boot("head"),
        ),
        after_network,
    )
    groups = [
        WorkerGroup(
            plan.name,
            WorkerGroupArgs(
                scope=scope,
                instance_types=settings.types_of(plan),
                plan=plan,
                efa=settings.efa,
                image=worker_image,
                key_arn=key.arn,
                root_volume_gib=settings.root_volume_gib,
                root_volume_throughput=settings.root_volume_throughput,
                subnet_id=network.worker_subnets[0].id,
                security_group_ids=network.security.node_groups + network.security.efa_groups,
                instance_profile=identity.worker_profile,
                placement_group=placement_group if plan.reservation or settings.in_placement_group(plan) else None,
                user_data=boot("worker", plan.name),
                health_check_grace_seconds=round(settings.launch.startup_timeout_minutes * 60),
            ),
            after_network,
        )
        for plan in settings.groups
    ]
    # The launch does not wait for these: they only notify.
    Guardrails(
        "guardrails",
        GuardrailsArgs(
            scope=scope,
            key_arn=key.service_arn,
            email=settings.guardrails.email,
            budget_usd=(settings.guardrails.budget_usd or max_run_usd(settings)) if has_budget else None,
            head=head.instance_id,
            groups={group.name: group.autoscaling_group for group in groups},
        ),
    )
    manifest = ManifestObject(
        "manifest",
        ManifestArgs(
            scope=scope,
            settings=settings,
            bucket=staging.name,
            data_bucket=data.name,
            archives=archives.references,
            head=head,
            groups=groups,
            subnets=network.worker_subnets,
            placement_group_arn=placement_group_arn,
            filesystem=filesystem,
            capacity_start_time=capacity_start_time(facts),
            capacity_end_time=capacity_end_time(facts),
        ),
    )
    components = [key, data, staging, archives, identity, filesystem, placement, head, *groups, manifest]
    launch = Launch(
        "launch",
        LaunchArgs(scope=scope, manifest=manifest.text, bucket=staging.name),
        pulumi.ResourceOptions(depends_on=[*network.dependencies, *(part for part in components if part is not None)]),
    )

    outputs.export(
        stack,
        scope.region,
        settings,
        data.name,
        staging_bucket=staging.name,
        manifest=staging.name.apply(manifest_uri),
        head=head.instance_id,
        groups=[group.autoscaling_group for group in groups],
        launch=launch.result,
    )


try:
    main(ROOT)
except InputError as error:
    raise pulumi.RunError(str(error)) from error
except Exception as error:
    if user_error := access_error(error):
        raise pulumi.RunError(str(user_error)) from user_error
    raise
