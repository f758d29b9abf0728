"""The Pulumi program: reads the stack's settings, wires the components, exports what the operator needs."""
# ruff: noqa: E402

import gc

gc.disable()  # the SDK's many classes stay: looking through them for garbage, again and again, is a third of a preview

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # the engine puts infra/ there, and the repository's root nowhere

import pulumi

from infra import outputs
from infra.components.filesystem import FileSystem, FileSystemArgs
from infra.components.guardrails import Guardrails, GuardrailsArgs
from infra.components.head import Head, HeadArgs
from infra.components.identity import Identity, IdentityArgs
from infra.components.key import StackKey, StackKeyArgs
from infra.components.launch import Launch, LaunchArgs
from infra.components.manifest import ManifestArgs, ManifestObject, manifest_uri
from infra.components.network import lay_network
from infra.components.placement import Placement, PlacementArgs
from infra.components.storage import DataArgs, DataBucket, StagingArgs, StagingBucket
from infra.components.workers import WorkerGroup, WorkerGroupArgs
from infra.lookups.account import look_up_facts, scope_of, zone_is_ours
from infra.lookups.image import look_up_image
from infra.lookups.instance_type import look_up_hardware
from infra.lookups.retained import look_up_earlier
from infra.packaging.archive import Packed
from infra.packaging.bundle import Archives, ArchivesArgs, Kind, pack_bundle
from infra.packaging.source import pack_source
from infra.packaging.user_data import Role, user_data
from infra.validators.account import capacity_ends, check_account
from trainyard.base import InputError
from trainyard.config.demand import capped_usd
from trainyard.config.loader import read_settings

if not gc.get_freeze_count():  # tests run the program many times in one process: what it loads is the same
    gc.freeze()
gc.enable()


def main(root: Path) -> None:
    stack = pulumi.get_stack()
    settings = read_settings(pulumi.Config().get_object("cluster"), root, f"stacks/Pulumi.{stack}.yaml")
    job, storage = settings.job, settings.storage
    packed: dict[Kind, Packed] = {"bundle": pack_bundle(root)}
    if job.source:
        packed["job"] = pack_source(root, job.source)
    # Every look-up that can fail stands before the first resource: what is registered earlier is already being made.
    facts = look_up_facts(settings)
    earlier = look_up_earlier(stack)
    check_account(settings, facts, earlier.stands)
    look_up_hardware(settings.worker_type)
    head_image, worker_image = (
        look_up_image(name, settings.root_volume_gib) for name in (settings.head_image, settings.worker_image)
    )
    scope = scope_of(pulumi.get_project(), stack, settings, facts)

    key = StackKey("key", StackKeyArgs(scope=scope, given=storage.kms_key, retained=earlier.key))
    data = DataBucket(
        "data",
        DataArgs(
            scope=scope,
            given=storage.bucket,
            retained=earlier.bucket,
            key_arn=key.arn,
            noncurrent_days=storage.noncurrent_days,
            archive_days=storage.archive_days,
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
            wheels=settings.node.wheels_in_s3,
            image=settings.ecr_image,
        ),
    )
    network = lay_network(scope, settings, zone_is_ours(settings, facts), key.service_arn)
    filesystem = None
    if settings.fsx:
        filesystem = FileSystem(
            "filesystem",
            FileSystemArgs(
                scope=scope,
                settings=settings.fsx,
                subnet_id=network.subnet_id,
                security_group_ids=network.security.fsx_groups,
                key_arn=key.arn,
                data_bucket=data.name,
            ),
            # FSx refuses a group whose Lustre ports are not open yet, and goes before the bucket that it is linked to.
            pulumi.ResourceOptions(depends_on=[network.security, data]),
        )
    placement = Placement("placement", PlacementArgs(scope=scope)) if settings.placement_group else None

    def boot(role: Role, group: str | None = None) -> pulumi.Output[str]:
        return staging.name.apply(lambda bucket: user_data(role, group, manifest_uri(bucket), scope.region, root))

    connected = pulumi.ResourceOptions(depends_on=network.parts)  # nodes need their way out from their first minute
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
        connected,
    )
    groups = [
        WorkerGroup(
            plan.name,
            WorkerGroupArgs(
                scope=scope,
                instance_type=settings.worker_type,
                plan=plan,
                efa=settings.efa,
                image=worker_image,
                key_arn=key.arn,
                root_volume_gib=settings.root_volume_gib,
                subnet_ids=[network.subnet_id],
                security_group_ids=network.security.node_groups + network.security.efa_groups,
                instance_profile=identity.worker_profile,
                placement_group=placement.group_name if placement else None,
                user_data=boot("worker", plan.name),
                grace_seconds=round(settings.launch.bring_up_minutes * 60),
            ),
            connected,
        )
        for plan in settings.groups
    ]
    guardrails = Guardrails(
        "guardrails",
        GuardrailsArgs(
            scope=scope,
            key_arn=key.service_arn,
            email=settings.guardrails.email,
            budget_usd=settings.guardrails.budget_usd or capped_usd(settings),
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
            archives=archives.told,
            head=head,
            groups=groups,
            subnet_id=network.subnet_id,
            filesystem=filesystem,
            ends=capacity_ends(facts),
        ),
    )
    built = [key, data, staging, archives, identity, filesystem, placement, head, *groups, guardrails, manifest]
    launch = Launch(
        "launch",
        LaunchArgs(scope=scope, manifest=manifest.text, bucket=staging.name),
        pulumi.ResourceOptions(depends_on=[*network.parts, *(part for part in built if part is not None)]),
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
