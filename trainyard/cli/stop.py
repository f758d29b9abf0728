"""`trainyard stop`."""

import json

import typer

from trainyard.cli.options import JsonOption, ManifestOption, StackOption, current_project
from trainyard.operations.archive import tag_old_objects
from trainyard.operations.cluster import Cluster
from trainyard.operations.image_builder import terminate_builders
from trainyard.operations.progress import create_display
from trainyard.operations.stack_reservations import delete_held_placement_groups
from trainyard.operations.stop import stop_run
from trainyard.quantity import quantity


def stop(
    context: typer.Context, stack: StackOption, manifest: ManifestOption = None, as_json: JsonOption = False
) -> None:
    """Stop the stack's run, and terminate its worker nodes and image builders.

    Exit status 1 when capacity reservations remain, which are billed.
    """
    with create_display() as display:
        cluster = Cluster.from_environment(stack, manifest, project=current_project(context))
        if manifest is None:  # `pulumi destroy` passes a manifest, and may run after the stack is deleted
            cluster.require_manifest()
        result = stop_run(cluster, display)
        if manifest is not None:
            delete_held_placement_groups(cluster, display, keep_used=False)
        if builders := terminate_builders(cluster):
            display.line("builder", f"terminated: {', '.join(builders)}")
        tag_old_objects(cluster, display)
        text = f"{quantity(len(result.nodes), 'node')} terminated"
        print(json.dumps({"terminated": result.nodes}) if as_json else text)
    # `pulumi destroy` continues: other resources cost more, and `trainyard destroy` lists what remains.
    if result.reservations and manifest is None:
        raise typer.Exit(1)
