"""Validate what an update does to the run that was launched last: it stops no active run without permission."""

import time

import pulumi

from infra.lookups.run import CurrentRun
from trainyard.config.settings.job import LaunchSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError
from trainyard.models.manifest import Manifest
from trainyard.models.run import find_node_change
from trainyard.quantity import quantity


def validate_active_run(manifest: Manifest | None, run: CurrentRun | None, settings: LaunchSettings) -> None:
    """Log what the update does to the run. Raises InputError if it stops an active run without `replace_running`.

    `manifest`: None if the update replaces resources that it names, so that it is not known in the preview.
    """
    if run is None:
        return
    now = time.time()
    is_same = manifest is not None and _continues(run, manifest, settings)
    nodes = _describe_nodes(run, manifest, now)
    source = "the newest checkpoint of the stopped run, if it has one" if settings.resume_replaced else "step 0"
    if not run.is_active(now):
        if not is_same or run.outcome is None or run.outcome.launch_failed:
            pulumi.log.info(f"this update starts a run. {nodes}")
        else:
            text = f"{run} has {run.outcome.state}: this update does not launch the job again. To launch it again"
            pulumi.log.info(f"{text}: change trainyard:cluster.launch.again")
    elif is_same or (run.record.scheduled_start is not None and now < run.record.scheduled_start):
        pulumi.log.info(f"{run} is active: this update does not stop it")
    elif settings.replace_running:
        pulumi.log.warn(f"this update stops {run}; the new run starts from {source}. {nodes}")
    else:
        reason = f"this update stops {run}, because {_reason(run, manifest, settings)}"
        stop = f"stop it (trainyard stop -s {pulumi.get_stack()})"
        fix = f"Wait for its end, {stop}, or set this key to true. The new run then starts from {source}. {nodes}"
        raise InputError([invalid_setting("launch.replace_running", False, reason, fix, "active_run_replaced")])


def _describe_nodes(run: CurrentRun, manifest: Manifest | None, now: float) -> str:
    """Return what the new run does with the nodes: it uses them, configures them again, or launches instances."""
    if manifest is None:
        return "Nodes: new instances, because the update replaces resources that they use"
    kept = run.is_active(now) or (run.outcome is not None and run.outcome.keeps_nodes(now))
    change = find_node_change(run.record, manifest)
    if not kept or run.record.scheduled_start is not None:
        return f"Nodes: {quantity(manifest.nodes, 'new instance')}"
    if change == "instances":
        text = "instance type, purchase option, image, root volume or EFA has changed"
        return f"Nodes: {quantity(manifest.nodes, 'new instance')}, because {text}"
    playbook = "the node playbook runs on them again" if change == "software" else "only the job changes"
    difference = manifest.nodes - run.record.nodes - run.record.spares
    more = f", and {quantity(difference, 'new instance')}" if difference > 0 else ""
    fewer = (
        f"; {quantity(-difference, 'node')} {'is' if difference == -1 else 'are'} terminated" if difference < 0 else ""
    )
    return f"Nodes: those of {run.record.run}, {playbook}{more}{fewer}"


def _continues(run: CurrentRun, manifest: Manifest, settings: LaunchSettings) -> bool:
    """Return whether the launch continues the run: with its nodes, or with more."""
    record = run.record
    is_smaller = manifest.job_nodes < record.nodes
    return record.matches(manifest) and not is_smaller and again(settings) == record.again


def again(settings: LaunchSettings) -> str:
    """Return `launch.again` as the record of a run stores it."""
    return "" if settings.again is None else str(settings.again)


def _reason(run: CurrentRun, manifest: Manifest | None, settings: LaunchSettings) -> str:
    if manifest is None:
        return "it replaces resources that the run uses"
    if again(settings) != run.record.again:
        return "launch.again has changed"
    if manifest.job_nodes < run.record.nodes:
        return f"it reduces the nodes from {run.record.nodes} to {manifest.job_nodes}"
    return "its job, node software or network has changed"
