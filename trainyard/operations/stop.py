"""Stop a run: record its end, terminate its nodes, and wait until EC2 has terminated them."""

import time
from collections import defaultdict
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import ec2
from trainyard.models.layout import RunLayout
from trainyard.models.run import Outcome
from trainyard.operations.cluster import Cluster
from trainyard.operations.pending_launch import cancel_pending_launch
from trainyard.operations.progress import Display
from trainyard.operations.scaling_activities import LAUNCH_IN_PROGRESS
from trainyard.operations.stack_reservations import cancel_reservations_of_stack, delete_held_placement_groups
from trainyard.operations.worker_groups import WorkerGroups

POLL_SECONDS = 1.0
# A node drains, and then metal and large GPU types shut down for up to 20 minutes.
STOP_TIMEOUT_SECONDS = 40 * 60
MAX_NAMED_NODES = 16
# Seconds after the end of a run in which its nodes write their last logs and events.
FLUSH_SECONDS = 60.0


@dataclass(frozen=True)
class StopResult:
    """`nodes`: those that ran. `reservations`: a text for each capacity reservation that was not cancelled."""

    nodes: list[str]
    reservations: list[str]


def stop_run(cluster: Cluster, display: Display, for_replacement: bool = False) -> StopResult:
    """Stop the current run and terminate all workers; return the nodes that ran and the remaining reservations.

    Cancels a launch that has not created its run, and the capacity reservations of the stack, deployed or not, and
    deletes the placement groups of `trainyard reserve`. `for_replacement`: a launch stops the run to replace it, and
    these are kept. It can be repeated. Raises TimeoutError when nodes still exist after STOP_TIMEOUT_SECONDS.
    """
    if not for_replacement:
        cancel_pending_launch(cluster)  # first: a launch writes its record before it checks whether it was cancelled
    is_deployed = cluster.is_deployed
    if is_deployed and WorkerGroups(cluster.manifest).cancel_scheduled_start():
        display.line("run", f"cancelled the scheduled start of the nodes of stack {cluster.stack}")
    nodes = (
        StoppingNodes(cluster, display, has_unsaved_data=_end_run(cluster, for_replacement)) if is_deployed else None
    )
    are_terminated = nodes is None or nodes.terminate()
    remaining = [] if for_replacement else cancel_reservations_of_stack(cluster.region, cluster.stack_tag, display)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while nodes is not None and not are_terminated:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"nodes still exist after {STOP_TIMEOUT_SECONDS // 60} minutes ({nodes.summary}): run trainyard stop "
                f"-s {cluster.stack} again, or terminate them in the AWS console"
            )
        time.sleep(POLL_SECONDS)
        are_terminated = nodes.terminate()
    if not for_replacement:
        if is_deployed:
            WorkerGroups(cluster.manifest).prevent_launches()
        delete_held_placement_groups(cluster, display)
    return StopResult(sorted(nodes.states) if nodes else [], remaining)


def _end_run(cluster: Cluster, for_replacement: bool) -> bool:
    """Record the end of an active run; return whether its nodes may have something to save.

    Nodes have nothing to save before the first attempt, and from FLUSH_SECONDS after the run succeeded or its last
    attempt failed. Otherwise the controller requests a last checkpoint (RunController.end_run).
    """
    run = cluster.current_run()
    if run is None:
        return False
    control, outcome = cluster.control(run.run), cluster.outcome(run.run)
    attempts = control.attempt if control else 0
    if outcome is None:
        outcome = Outcome(
            state="stopped",
            reason="trainyard stop",
            attempts=attempts,
            ended_at=time.time(),
            keeps_reservations=for_replacement,
        )
        cluster.data.write(RunLayout(run.run).outcome, outcome.model_dump_json().encode())
    elif outcome.nodes_kept_until is not None:
        changes = {"nodes_kept_until": None, "keeps_reservations": for_replacement}
        content = outcome.model_copy(update=changes).model_dump_json()
        cluster.data.write(RunLayout(run.run).outcome, content.encode())
    is_over = outcome.state == "succeeded" or (control is not None and control.waiting_since is not None)
    return attempts > 0 and not (is_over and time.time() > outcome.ended_at + FLUSH_SECONDS)


class StoppingNodes:
    """The nodes of a cluster during their termination. `states`: every node that was a member -> its state.

    The states are pending, running, draining (its termination was requested, and it saves a checkpoint), shutting-down
    and terminated. `has_unsaved_data`: whether running nodes may have something to save.
    """

    def __init__(self, cluster: Cluster, display: Display, has_unsaved_data: bool) -> None:
        self._region, self._display, self._has_unsaved_data = cluster.region, display, has_unsaved_data
        self._workers = WorkerGroups(cluster.manifest)
        self._requested: set[str] = set()
        self._omitted: set[str] = set()  # nodes that the last response of EC2 omitted
        self.states: dict[str, str] = {}

    @property
    def summary(self) -> str:
        """The states of all nodes."""
        names = defaultdict(list)
        for name, state in sorted(self.states.items()):
            names[state].append(name)
        if len(self.states) > MAX_NAMED_NODES:
            return ", ".join(f"{len(nodes)} {state}" for state, nodes in names.items())
        return ", ".join(f"{len(nodes)} {state}: {' '.join(nodes)}" for state, nodes in names.items())

    def terminate(self) -> bool:
        """Request the termination of all nodes, and display their states; return whether all are terminated."""
        members = self._scale_to_zero()
        lifecycle_states = self._workers.lifecycle_states()
        names = {*self.states, *(members or ()), *lifecycle_states}
        described = ec2.instance_states(self._region, sorted(names))
        earlier = self.states
        self.states = {
            name: _state(
                lifecycle_states.get(name), described.get(name), earlier.get(name), was_omitted=name in self._omitted
            )
            for name in names
        }
        self._omitted = names - described.keys()
        if self.states:
            self._display.line("nodes", self.summary)
        if members is not None:
            self._terminate_without_shutdown()
        return members is not None and all(state == "terminated" for state in self.states.values())

    def _scale_to_zero(self) -> list[str] | None:
        """Set the desired capacities to 0; return the members, or None while Auto Scaling refuses it."""
        try:
            return self._workers.scale_to_zero()
        except ClientError as error:
            if error.response["Error"]["Code"] != LAUNCH_IN_PROGRESS:
                raise
            self._display.detail("nodes", str(error))
            return None

    def _terminate_without_shutdown(self) -> None:
        """Terminate the nodes that have nothing to save, without drain and shutdown of the operating system."""
        without_data = {"pending"} if self._has_unsaved_data else {"pending", "running", "draining"}
        nodes = [name for name, state in sorted(self.states.items()) if state in without_data]
        if nodes := [name for name in nodes if name not in self._requested]:
            self._requested.update(nodes)
            try:
                ec2.terminate_instances(self._region, nodes, skip_os_shutdown=True)
            except (BotoCoreError, ClientError) as error:  # the group terminates them
                self._display.detail(
                    "nodes", f"TerminateInstances with SkipOsShutdown failed; the group terminates the nodes: {error}"
                )


def _state(lifecycle_state: str | None, ec2_state: str | None, previous: str | None, was_omitted: bool) -> str:
    """Return the state of a node. `previous`: its state after the last call, whose response omitted it or not.

    EC2 does not describe new instances at once, nor terminated ones forever, and a response may omit any instance. Then
    the state of the group member counts: a node must not lose its checkpoint because it is taken for a pending one. A
    node that is no member is terminated after two such responses.
    """
    is_terminating = (lifecycle_state or "").startswith("Terminating")
    if ec2_state is not None:
        return "draining" if ec2_state == "running" and is_terminating else ec2_state
    if previous in ("shutting-down", "terminated") and not (was_omitted and lifecycle_state is None):
        return previous
    if lifecycle_state is None:
        return "terminated"
    if lifecycle_state.startswith("Pending"):
        return "pending"
    return "draining" if is_terminating else "running"
