"""The job of a stack: its manifest, which nodes and commands read, and its launch."""

import pulumi

from infra.components.filesystem import FileSystem
from infra.components.identity import Identity
from infra.components.launch import Launch, LaunchArgs
from infra.components.manifest import ManifestArgs, ManifestObject
from infra.components.network import Network
from infra.inputs import Inputs
from infra.nodes import Nodes
from infra.storage import Storage
from infra.validators.account import capacity_end_time, capacity_start_time
from infra.validators.active_run import validate_active_run
from trainyard.errors import InputError
from trainyard.models.manifest import Manifest
from trainyard.models.run import NO_RUN


def create_manifest(
    inputs: Inputs,
    storage: Storage,
    network: Network,
    filesystem: FileSystem | None,
    identity: Identity,
    nodes: Nodes,
) -> ManifestObject:
    """Create the manifest object."""
    return ManifestObject(
        "manifest",
        ManifestArgs(
            scope=inputs.scope,
            settings=inputs.settings,
            bucket=storage.staging.name,
            data_bucket=storage.data.name,
            archives=storage.archives.references,
            job_role_arn=identity.job_role_arn,
            head_autoscaling_group=nodes.head.autoscaling_group,
            termination=nodes.termination,
            groups=nodes.groups,
            subnets=network.worker_subnets,
            placement_group_arn=nodes.placement_group.arn,
            filesystem=filesystem,
            capacity_start_time=capacity_start_time(inputs.facts),
            capacity_end_time=capacity_end_time(inputs.facts),
            validate=lambda manifest: _validate(manifest, inputs),
        ),
    )


def _validate(manifest: Manifest | None, inputs: Inputs) -> None:
    try:
        validate_active_run(manifest, inputs.current_run, inputs.settings.launch)
    except InputError as error:
        raise pulumi.RunError(str(error)) from error


def create_launch(
    inputs: Inputs, storage: Storage, manifest: ManifestObject, dependencies: list[pulumi.Resource | None]
) -> Launch:
    """Create the launch. `dependencies`: all that the job uses. `destroy` stops the job before it deletes them."""
    return Launch(
        "launch",
        LaunchArgs(
            scope=inputs.scope,
            settings=inputs.settings.launch,
            trigger=inputs.current_run.trigger if inputs.current_run else NO_RUN,
            manifest=manifest.text,
            bucket=storage.staging.name,
        ),
        pulumi.ResourceOptions(depends_on=[manifest, *(each for each in dependencies if each is not None)]),
    )
