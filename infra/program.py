"""Runs the Pulumi program: reads the settings of the stack, creates the components and exports the outputs."""
# ruff: noqa: E402

import gc

gc.disable()  # the SDK's classes are never garbage; looking for it takes a third of a preview (benchmarks/preview.py)

from dataclasses import replace
from pathlib import Path

import pulumi

from infra import outputs
from infra.components.manifest import manifest_uri
from infra.components.network import create_network
from infra.inputs import read_inputs
from infra.job import create_launch, create_manifest
from infra.lookups.account import zone_is_default
from infra.lookups.errors import access_error
from infra.nodes import create_boundary, create_guardrails, create_identity, create_nodes, protect_staging
from infra.storage import create_filesystem, create_storage
from trainyard.config.project import Project, read_project
from trainyard.errors import InputError

if not gc.get_freeze_count():  # tests run this program many times in one process
    gc.freeze()
gc.enable()


def run(folder: Path) -> None:
    """Run the program for the stack of the engine. `folder`: of Pulumi.yaml. Raises RunError for a user error."""
    try:
        create_stack(read_project(folder.absolute()))
    except InputError as error:
        raise pulumi.RunError(str(error)) from error
    except Exception as error:
        if user_error := access_error(error):
            raise pulumi.RunError(str(user_error)) from user_error
        raise


def create_stack(project: Project) -> None:
    """Create all resources of the stack. Raises InputError for invalid settings."""
    inputs = read_inputs(project)
    settings, facts = inputs.settings, inputs.facts
    storage = create_storage(inputs)
    boundary = create_boundary(inputs, storage)
    if boundary is not None:
        inputs = replace(inputs, scope=replace(inputs.scope, boundary=boundary.arn))
    scope = inputs.scope
    zones, pin_zone = facts.worker_zones(settings), zone_is_default(settings, facts)
    buckets = [storage.data.arn, storage.staging.arn]
    network = create_network(scope, settings, zones, pin_zone, storage.key.service_arn, buckets)
    identity = create_identity(inputs, storage, network)
    policy = protect_staging(storage, identity)
    filesystem = create_filesystem(inputs, storage, network)
    nodes = create_nodes(inputs, storage, network, identity)
    create_guardrails(inputs, storage, nodes)
    manifest = create_manifest(inputs, storage, network, filesystem, identity, nodes)
    stored = [storage.key, storage.data, storage.staging, policy, storage.archives, filesystem]
    launched = [boundary, identity, nodes.placement_group.component, nodes.head, nodes.termination, *nodes.groups]
    launch = create_launch(inputs, storage, manifest, [*network.dependencies, *stored, *launched])
    outputs.export(
        scope,
        settings,
        storage.data.name,
        staging_bucket=storage.staging.name,
        manifest=storage.staging.name.apply(manifest_uri),
        head_group=nodes.head.autoscaling_group,
        groups=[group.autoscaling_group for group in nodes.groups],
        launch=launch.result,
    )
