"""Scale-out of an active run: the launch adds nodes for the next attempt, and terminates them if that fails."""

import time
from collections.abc import Mapping

from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, LaunchResult, RunRecord
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch_operation import LaunchOperation
from trainyard.operations.startup import NodeStartup
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity


def missing_nodes(manifest: Manifest, workers: WorkerGroups, control: Control) -> dict[str, int]:
    """Return group -> nodes in the manifest minus nodes of the attempt and spare nodes.

    Auto Scaling does not list a lost node: it counts as a node of a group that has fewer nodes than the manifest.
    """
    by_group = workers.members_by_group()
    spares = control.find_spares((node for nodes in by_group.values() for node in nodes), manifest.spares)
    members = {name: set(nodes) & {*control.nodes, *spares} for name, nodes in by_group.items()}
    lost = len({*control.nodes, *spares}) - sum(map(len, members.values()))
    missing = {}
    for group in manifest.groups:
        difference = group.nodes - len(members.get(group.name, ()))
        missing[group.name] = difference - min(max(difference, 0), lost)
        lost -= min(max(difference, 0), lost)
    missing[group.name] -= lost
    return missing


def scale_out_run(
    launch: LaunchOperation, current: RunRecord, control: Control, missing: Mapping[str, int]
) -> LaunchResult:
    """Add `missing` nodes (group -> number) to the active run `current`, whose state is `control`.

    Raises LaunchError when that fails; then the run continues with its nodes.
    """
    launch.active_run = current
    return launch.with_rollback(
        lambda: _add_nodes_to_run(launch, current, control, missing),
        lambda reason: _restore_record(launch, current, control),
    )


def _add_nodes_to_run(
    launch: LaunchOperation, current: RunRecord, control: Control, missing: Mapping[str, int]
) -> LaunchResult:
    """Add nodes to an active run; they are ready before its current attempt is interrupted."""
    members = launch.workers.members()
    if lost := sorted(set(control.nodes) - set(members)):
        raise LaunchError(
            f"run {current.run} has lost {', '.join(lost)} and waits for replacements, so that no nodes can be "
            f"added; launch again when it runs, or stop it: trainyard stop -s {launch.cluster.stack}"
        )
    with launch.phase("workers"):
        launch.display.line(
            "run", f"{current.run} scales out from {current.nodes} to {quantity(launch.record.nodes, 'node')}"
        )
        _terminate_leftover_nodes(launch, control, members)
        launch.reserve_capacity(missing, control.nodes)
        # The controller extends a reservation that the record names.
        current = current.model_copy(update={"reservations": launch.reservation_ids() or current.reservations})
        launch.write_record(current)
        launch.workers.put_lease(current.lease_end(time.time()))
        startup = NodeStartup(launch.cluster, launch.display, launch.deadline, current.run)
        startup.expect(launch.add_nodes(missing))
    with launch.phase("startup"):
        startup.wait_for_agents()
        launch.write_record(current.model_copy(update={"nodes": launch.record.nodes}))
        if launch.record.nodes > current.nodes:
            startup.wait_for_job(launch.record.nodes, after=control.attempt)
    launch.report_job_started()
    return launch.result(current.run, launch.workers.members())


def _terminate_leftover_nodes(launch: LaunchOperation, control: Control, members: list[str]) -> None:
    """Terminate nodes that an earlier launch added before it was killed: their state is unknown."""
    spares = control.find_spares(members, launch.manifest.spares)
    leftover = sorted(set(members) - set(control.nodes) - set(spares))
    if leftover:
        launch.workers.terminate(leftover, launch.display)
        launch.display.line("nodes", f"terminated nodes of an earlier launch that was killed: {', '.join(leftover)}")
        launch.deadline.wait_until(
            f"the termination of {', '.join(leftover)}", lambda: not set(leftover) & set(launch.workers.members())
        )


def _restore_record(launch: LaunchOperation, current: RunRecord, control: Control) -> None:
    """Restore the record of the run after a failed scale-out; display what continues to run and its price."""
    if launch.cluster.current_run() != current:
        launch.write_record(current)
    if launch.cluster.outcome(current.run) is None:
        nodes = set(control.nodes) & set(launch.workers.members())
        price = launch.manifest.base_usd_per_hour + sum(launch.workers.usd_per_hour(nodes).values())
        text = f"{current.run} continues with its {quantity(len(nodes), 'node')} and costs {price:,.2f} USD per hour"
        launch.display.line("run", text)
