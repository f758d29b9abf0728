"""The job's agent on a worker: `python -m trainyard.node.agent`, run by systemd.

It reports to the controller that the node is ready, runs the health checks that the controller requests, runs torchrun
for each attempt, and copies logs and metrics to S3 as they grow. An attempt continues when the agent ends, and the next
agent finds it. The agent reports how the workers ended and, if the run has an idle limit, whether they compute. The
controller makes all decisions. When the node leaves its group, the agent requests a checkpoint and powers the node
off. If the nodes are kept after a run, the agent serves the next run on them.
"""

import json
import logging
import subprocess
import threading
import time

from pydantic import ValidationError

from trainyard.aws.outages import is_outage
from trainyard.aws.s3 import Bucket
from trainyard.models.connection import Heartbeat
from trainyard.models.events import ActivityEvent, AgentEvent, HealthCheckEvent, RankFailure
from trainyard.models.health_check import NodeFault, NodeMeasurements
from trainyard.models.layout import CURRENT_RUN, RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, HealthCheckRequest, NodeRepair, RunRecord
from trainyard.node.agent import job_unit
from trainyard.node.agent.activity import REPORT_SECONDS, Activity, cpu_meter, gpu_meter
from trainyard.node.agent.attempt import AttemptTorchrun, delete_memory
from trainyard.node.agent.connection import HeadConnection
from trainyard.node.agent.credentials import PORT, CredentialsServer, JobCredentials
from trainyard.node.agent.drain import DRAIN_SECONDS, INTERRUPTION_SECONDS, Cause, Drain
from trainyard.node.agent.health_check import Findings, HealthCheckTorchrun, create_event
from trainyard.node.agent.job_unit import JobUnit
from trainyard.node.agent.state import open_state_file
from trainyard.node.health.monitor import HealthMonitor
from trainyard.node.health.repairs import repair
from trainyard.node.identity import EXIT_NEWER_BUNDLE, Node, find_group, is_configured, is_outdated
from trainyard.node.refresh import refresh
from trainyard.node.sequence import next_sequence
from trainyard.node.streams import ChunkWriter
from trainyard.node.watchdog import report_progress

POLL_SECONDS = 1.0
HEALTH_REFRESH_SECONDS = 0.5  # longest wait for the sensors before a failure is reported: the next attempt waits, too
FAST_POLL_SECONDS = 0.1  # while the job or a health check runs: all nodes wait for the slowest
# The new nodes of the next attempt wait at the rendezvous meanwhile: less than its join timeout.
RESIZE_SECONDS = 240.0
# Time between two looks for a changed manifest, while this node waits for the playbook.
REFRESH_SECONDS = 5.0
LOG = logging.getLogger("agent")


class Agent:
    """Agent of one run on this node, until `stop` is set.

    `next_run`: the run that follows on this node, if `serve` has returned for it. `health`: monitor of the node, which
    outlasts the run.
    """

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        run: RunRecord,
        stop: threading.Event | None = None,
        health: HealthMonitor | None = None,
    ) -> None:
        self.node, self.manifest, self.run = node, manifest, run
        self.stop_requested = stop or threading.Event()
        self.next_run: RunRecord | None = None
        self._health = health or HealthMonitor(())
        self._data = Bucket(manifest.data_bucket, node.region)
        self._staging = Bucket(manifest.staging_bucket, node.region, node.account)
        self._layout = RunLayout(run.run)
        self._events = ChunkWriter(self._data, chunk_prefix(self._layout.events, node.instance, node.boot, "agent"))
        self._connection = HeadConnection(self._staging, self._data, self._create_heartbeat)
        self._attempt: AttemptTorchrun | None = None
        self._health_check: HealthCheckTorchrun | None = None
        self._group = find_group(node, manifest)
        self._drain = Drain(node, self._group)
        self._standby: JobUnit | None = None  # of the attempt after the current one
        self._standby_started_in = 0  # attempt in which a standby was started, or could not be started
        self._log_writers: list[threading.Thread] = []  # of failed attempts
        self._activity: Activity | None = None
        self._record_read_at = 0.0
        self._state_file = open_state_file(run)
        self._credentials = self._serve_credentials()
        self._control_read_at = self._refreshed_at = self._polled_at = 0.0
        self._is_ready = self._is_stopped = False

    def _serve_credentials(self) -> CredentialsServer:
        """Serve the job's credentials at the address that a running job already has."""
        state, credentials = self._state_file.state, JobCredentials(self.manifest, self.run, self.node.instance)
        server = CredentialsServer(credentials, state.credentials_port or PORT, state.credentials_token)
        self._state_file.update(credentials_port=server.port, credentials_token=server.token)
        return server

    def report_state(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        """Report a state of this agent to the controller now."""
        event = {
            **self.node.event_fields(time.time()),
            "run": self.run.run,
            "attempt": attempt,
            "state": state,
            "address": self.node.address,
            "failures": failures,
            "health": self._health.snapshot(),
        }
        LOG.info("%s, attempt %d", state, attempt)
        self._report(AgentEvent.model_validate(event))

    def _report(self, event: AgentEvent | HealthCheckEvent) -> None:
        """Report an event now: on the connection, and in S3, in case the connection is lost."""
        self._connection.send(event)
        self._events.write_event(event)
        self._events.request_flush()

    def _create_heartbeat(self) -> Heartbeat:
        attempt = self._attempt
        return Heartbeat(
            instance=self.node.instance,
            boot=self.node.boot,
            sequence=next_sequence(),
            run=self.run.run,
            attempt=attempt.number if attempt is not None else 0,
            ranks=attempt.progress() if attempt is not None else (),
            health=self._health.snapshot(),
        )

    def serve(self) -> int:
        """Serve until the node is drained, the service is stopped or another run follows; the exit code.

        Neither an S3 outage nor a stop of the service ends the job. An idle agent also ends if a newer bundle exists,
        and systemd restarts it.
        """
        self._connection.start()
        self._continue_previous()
        if not self._is_ready:
            self._report_ready()
        while not self._wait():
            report_progress()
            try:
                if self._is_poll_due():
                    if cause := self._drain.cause():
                        self._drain_node(cause)
                        return 0
                    if self._attempt is not None:
                        self._attempt.forward_logs()
                if not self._is_ready:
                    self._report_ready()
                self._step()
                if self.next_run is not None:
                    break
                if self._attempt is None and self._health_check is None and is_outdated(self.node):
                    LOG.info("restart: a newer bundle exists")
                    self._close()
                    return EXIT_NEWER_BUNDLE
            except Exception as error:
                LOG.error("%s: %s", type(error).__name__, error)
        self._stop_health_check()
        if self._attempt is not None:
            self._attempt.detach()
        self._close()
        return 0

    def _wait(self) -> bool:
        """Wait for new requests of the controller or the next poll; return whether the service is stopped."""
        is_working = self._health_check is not None or self._attempt is not None
        self._connection.changed.wait(FAST_POLL_SECONDS if is_working else POLL_SECONDS)
        self._connection.changed.clear()
        return self.stop_requested.is_set()

    def _is_poll_due(self) -> bool:
        """Return True at most once in POLL_SECONDS, for operations that each fast poll need not repeat."""
        now = time.monotonic()
        if now < self._polled_at + POLL_SECONDS:
            return False
        self._polled_at = now
        return True

    def _close(self) -> None:
        """Write the remaining logs and events to S3, and close the connection to the head."""
        for writer in self._log_writers:
            writer.join()
        self._credentials.close()
        try:
            self._events.close()
        finally:
            self._connection.close()

    def _report_ready(self) -> None:
        """Report that this node can run the job. A kept node may have to run the playbook first."""
        run = self.run
        if run.previous_run is None or is_configured(run.node_digest, run.job.container):
            self._is_ready = True
            self.report_state("ready", 0)
        else:
            self._refresh(run)

    def _refresh(self, run: RunRecord | None = None) -> None:
        """Apply a changed manifest, which runs the playbook, as a new container image of `run` does.

        An error is logged, and the next call tries it again.
        """
        if time.monotonic() < self._refreshed_at + REFRESH_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        try:
            refresh(self.node, run)
        except Exception as error:
            LOG.error("the manifest cannot be refreshed: %s: %s", type(error).__name__, error)

    def _step(self) -> None:
        """Advance the running health check, then follow the requests of the controller."""
        if self._health_check is not None:
            self._health_check.forward_logs()
            if self._health_check.is_over():
                self._finish_health_check(self._health_check)
        control = self._read_control()
        if control is None:
            return
        if control.stop:
            if not self._is_stopped:
                self._stop_job(control.save_checkpoint)
            self.next_run = self._find_next_run()
            return
        if self._health_check is not None and control.health_check != self._health_check.request:
            self._stop_health_check()  # the controller has dropped this health check
        requested = control.repairs.get(self.node.instance)
        if self._attempt is not None:
            self._step_attempt(self._attempt, control)
        elif not self._is_ready:
            return  # the playbook runs on a kept node first
        elif requested is not None and requested.number > self._state_file.state.repair:
            self._start_repair(requested)
        elif control.attempt > self._state_file.state.attempt and self.node.instance in control.nodes:
            self._start_attempt(control)
        elif (request := control.health_check) is not None and self._is_new(request):
            self._start_health_check(request)

    def _read_control(self) -> Control | None:
        """Return the requests of the controller; None without a connection if S3 was read a moment ago."""
        if control := self._connection.control(self.run.run):
            return control
        if time.monotonic() < self._control_read_at + POLL_SECONDS:
            return None
        self._control_read_at = time.monotonic()
        content = self._data.find(self._layout.control)
        return Control() if content is None else Control.model_validate_json(content)

    def _stop_job(self, save_checkpoint: bool) -> None:
        """Stop the job at the end of the run, after a last checkpoint if `save_checkpoint` is set."""
        if save_checkpoint:
            self._save_checkpoint(DRAIN_SECONDS)
        self._stop_processes()
        self._stop_standby()
        delete_memory()
        self._state_file.update(attempt_reported=True, health_check_reported=True)
        self.report_state("stopped", self._state_file.state.attempt)
        self._is_stopped = True

    def _find_next_run(self) -> RunRecord | None:
        """Return the run that uses this node after the end of its run, if a launch has created one."""
        content = self._staging.find(CURRENT_RUN)
        if content is None or json.loads(content)["run"] == self.run.run:
            return None
        try:
            return RunRecord.model_validate_json(content)
        except ValidationError:  # a newer version has written it, whose bundle the manifest names
            self._refresh()
            return None

    def _is_new(self, request: HealthCheckRequest) -> bool:
        return self.node.instance in request.nodes and request.number > self._state_file.state.health_check

    def _start_repair(self, request: NodeRepair) -> None:
        """Repair the node in a thread. After a reset the agent reports it; a reboot ends the agent."""
        self._state_file.update(repair=request.number)

        def run() -> None:
            try:
                if repair(request.action, self._health) == "reset":
                    self.report_state("repaired", request.number)
            except (OSError, subprocess.SubprocessError) as error:  # the controller replaces the node
                LOG.error("%s: %s", request.action, error)

        threading.Thread(target=run, name="repair", daemon=True).start()

    def _continue_previous(self) -> None:
        """Continue the attempt of the previous agent, even if it has ended. Report its health check as failed."""
        before = self._state_file.state
        delete_memory(self.run.run)
        job_unit.kill_health_checks()
        if before.attempt_reported:
            job_unit.stop_attempts()  # an agent that was killed may have missed the end of an earlier run
        else:
            LOG.info("attempt %d of an earlier agent continues", before.attempt)
            self._is_ready = True  # not reported again: the controller would take it for the state of the attempt
            self._attempt = self._create_attempt()
            self._attempt.stop_standby()
        if not before.health_check_reported:
            text = "the agent of the node exited during the health check"
            self._report_health_check(self._failed_health_check(before.health_check, text))

    def _create_attempt(self, control: Control | None = None, standby: JobUnit | None = None) -> AttemptTorchrun:
        variables = dict(self._credentials.variables())
        return AttemptTorchrun(
            self.node, self.manifest, self._group, self.run, self._state_file, variables, control, standby
        )

    def _report_attempt_end(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        self.report_state(state, attempt, failures)
        self._state_file.update(attempt=attempt, attempt_reported=True)

    def _start_health_check(self, request: HealthCheckRequest) -> None:
        self._state_file.update(health_check=request.number, health_check_reported=False)
        LOG.info("health check %d", request.number)
        try:
            self._health_check = HealthCheckTorchrun(self.node, self.manifest, self._group, self.run, request)
        except Exception as error:
            text = f"the health check cannot start: {type(error).__name__}: {error}"
            self._report_health_check(self._failed_health_check(request.number, text))

    def _failed_health_check(self, number: int, text: str) -> HealthCheckEvent:
        findings = Findings((NodeFault(kind="crashed", text=text[:400]),))
        return create_event(self.node, self._group, self.run, number, NodeMeasurements(), findings)

    def _finish_health_check(self, health_check: HealthCheckTorchrun) -> None:
        self._report_health_check(health_check.result_event())
        self._stop_health_check()

    def _report_health_check(self, event: HealthCheckEvent) -> None:
        self._report(event)
        network = event.measurements.network if event.measurements.provider else None
        self._state_file.update(health_check=event.number, health_check_reported=True, network=network)

    def _start_attempt(self, control: Control) -> None:
        number, rank = control.attempt, control.first_rank(self.node.instance, self.run.processes_per_node)
        self._state_file.update(
            attempt=number,
            attempt_reported=False,
            boot=self.node.boot,
            first_rank=rank,
            up_reported=False,
            checkpoint_requests=control.checkpoint_requests,
            killed_ranks=(),
        )
        standby, self._standby = self._standby, None
        try:
            if standby is not None and not (standby.number == number and standby.is_standby):
                standby.stop()
                standby = None
            self._attempt = self._create_attempt(control, standby)
        except Exception as error:  # reported as the failure of the node, so that the user sees it
            text = f"{type(error).__name__}: {error}"
            failure = RankFailure(
                rank=rank,
                local_rank=None,
                time=time.time(),
                exitcode=1,
                message=text[:400],
                traceback=text,
                is_outage=is_outage(error),
            )
            self._report_attempt_end("workers_failed", number, (failure,))

    def _step_attempt(self, attempt: AttemptTorchrun, control: Control) -> None:
        """Report the progress of an attempt, and end it when its workers have exited or a newer request replaces it."""
        if not self._state_file.state.up_reported and attempt.are_workers_up():
            self.report_state("workers_up", attempt.number)
            self._state_file.update(up_reported=True)
        if self._state_file.state.up_reported:
            self._report_activity(attempt, time.monotonic())
            self._start_standby(attempt)
        if control.checkpoint_requests > self._state_file.state.checkpoint_requests:
            self._state_file.update(checkpoint_requests=control.checkpoint_requests)
            self._save_checkpoint(INTERRUPTION_SECONDS)
        # A health check of this node means that its attempt is lost, even if no rank here has noticed it yet.
        request = control.health_check
        superseded = control.attempt > attempt.number or (request is not None and self._is_new(request))
        if superseded and control.save_checkpoint:
            self._save_checkpoint(RESIZE_SECONDS)
        if control.aborted_attempt >= attempt.number or attempt.has_failed_rank():
            if not attempt.is_aborted and control.aborted_attempt < attempt.number:
                self.report_state("rank_failed", attempt.number)  # the other nodes end their ranks meanwhile
            attempt.abort()
        code = attempt.exit_code()
        if code is None and (attempt.is_aborted or not superseded):
            return
        # The next attempt waits for the report of a failure and for the end of all processes, not for the logs.
        if code and not self._state_file.state.attempt_reported:
            # An Xid ends a rank within milliseconds, before the next regular reading.
            self._health.refresh(HEALTH_REFRESH_SECONDS)
            self._report_attempt_end("workers_failed", attempt.number, attempt.failures())
        self._stop_processes(wait_for_logs=not code)
        if code == 0:
            self._report_attempt_end("workers_done", attempt.number)

    def _start_standby(self, attempt: AttemptTorchrun) -> None:
        """Start the standby of the next attempt, once a rank of this attempt has written its progress file."""
        if self._standby_started_in == attempt.number or not (attempt.has_standby and attempt.progress()):
            return
        self._standby_started_in = attempt.number
        try:
            self._standby = attempt.start_standby()
        except OSError as error:  # the next attempt starts without it
            LOG.warning("no standby for the next attempt: %s", error)

    def _stop_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.stop()

    def _report_activity(self, attempt: AttemptTorchrun, now: float) -> None:
        """Report whether the job computes, if the run has an idle limit. A later launch may change the limit."""
        if now - self._record_read_at >= REPORT_SECONDS:
            self._record_read_at = now
            if content := self._data.find(self._layout.record):
                self.run = RunRecord.model_validate_json(content)
        if self.run.limits.idle_timeout_minutes is None:
            self._activity = None
            return
        if self._activity is None:
            gpus = self._group.gpus and self.manifest.node.use_gpus
            meter = gpu_meter() if gpus else cpu_meter(attempt.process_id, self.run.processes_per_node)
            self._activity = Activity(meter)
        if sample := self._activity.sample(now):
            reading, idle_seconds = sample
            event = {
                **self.node.event_fields(time.time()),
                "run": self.run.run,
                "attempt": attempt.number,
                "idle_seconds": idle_seconds,
                "resource": reading.resource,
                "percent": reading.percent,
            }
            activity = ActivityEvent.model_validate(event)
            self._connection.send(activity, repeat=False)
            self._events.write_event(activity)

    def _save_checkpoint(self, timeout_seconds: float) -> None:
        """Request a checkpoint of the running attempt, if the job supports that.

        Ranks of other jobs only have the time between SIGTERM and SIGKILL of torchrun.
        """
        if self._attempt is not None and self._state_file.state.up_reported and self.run.job.saves_on_request:
            try:
                self._attempt.save_checkpoint(timeout_seconds, self._drain.record_heartbeat)
            except OSError as error:  # the job has replaced files of the request, or the disk is full
                LOG.warning("attempt %d saves no checkpoint: %s", self._attempt.number, error)

    def _stop_health_check(self) -> None:
        """Kill the processes of the health check and write its remaining logs to S3."""
        if self._health_check is not None:
            self._health_check.kill()  # an error is logged, and the next step repeats it
            health_check, self._health_check = self._health_check, None
            health_check.close()

    def _stop_processes(self, wait_for_logs: bool = True) -> None:
        """Stop the processes of health check and attempt and write their remaining logs to S3."""
        self._stop_health_check()
        if self._attempt is not None:
            self._attempt.stop()  # an error is logged, and the next step repeats it
        attempt, self._attempt, self._activity = self._attempt, None, None
        if attempt is not None and wait_for_logs:
            self._close_logs(attempt)  # the end of the attempt is reported even if S3 does not respond
        elif attempt is not None:
            self._log_writers.append(threading.Thread(target=self._close_logs, args=(attempt,), name="logs"))
            self._log_writers[-1].start()

    def _close_logs(self, attempt: AttemptTorchrun) -> None:
        try:
            attempt.close()
        except Exception as error:
            LOG.error("logs of attempt %d: %s: %s", attempt.number, type(error).__name__, error)

    def _drain_node(self, cause: Cause) -> None:
        """Request a checkpoint, stop the workers, report the end, and power the node off."""
        self._save_checkpoint(self._drain.checkpoint_timeout_seconds())
        self._stop_processes()
        self._stop_standby()
        self.report_state("drained", self._state_file.state.attempt)
        self._close()
        self._drain.power_off(cause)
