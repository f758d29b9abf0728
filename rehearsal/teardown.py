"""The last stages of every rehearsal, also after a failure: destroy the stack, then audit the account."""

import time
from collections.abc import Iterable
from functools import partial

from rehearsal import audit
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.teardown import DestroyError, DestroyResult
from rehearsal.aws.billing import billed_by_type, unused_by_type
from rehearsal.aws.control_models import InstanceRecord
from rehearsal.capacity_attempts import capacity_attempts
from rehearsal.context import Context
from rehearsal.engine.base import Engine
from rehearsal.faults import format_fault
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.hypervisor import Hypervisor, instances_of_stack
from rehearsal.interrupts import INTERRUPTED
from rehearsal.run_progress import TERMINATION_TIMEOUT_SECONDS, FollowError, skipped_roles, wait_until
from rehearsal.substitutions import skip_reason
from rehearsal.timeline import fill_timeline
from rehearsal.workspace import LOGS
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket
from trainyard.models.report import NotRehearsed, Substitution
from trainyard.operations.cluster import Cluster
from trainyard.operations.runs import read_logs

NO_LIMITS = "quotas that allow the stack, capacity in every zone, and no throttling"
# Faults that also occur on AWS.
_AWS_FAULTS = {
    "capacity",
    "eventual-consistency",
    "interface-quota",
    "member-omission",
    "outage",
    "quota",
    "scaling-activity",
    "throttle",
}


def emulation_differences(faults: Iterable[str]) -> list[Substitution]:
    """Return how the emulated AWS differs from AWS, given the injected faults in the syntax of --fault."""
    injected = [fault for fault in faults if fault.partition(",")[0] in _AWS_FAULTS]
    behavior = f"{NO_LIMITS}, except for the injected faults: {'; '.join(injected)}" if injected else NO_LIMITS
    return [
        Substitution(
            original="the operator's IAM permissions",
            replacement="permission for every action",
            reason="the emulated AWS evaluates the policies of roles only",
        ),
        Substitution(
            original="quotas, capacity and throttling of AWS",
            replacement=behavior,
            reason="the emulated AWS runs on this machine",
        ),
    ]


class Teardown:
    """Destroys the stack and audits the account. Create it before any resource: it records the account's state."""

    def __init__(self, context: Context, backend: Backend, engine: Engine) -> None:
        self.context, self.backend, self.engine = context, backend, engine
        self._resources_before = context.aws.list_resources()
        self._instances_before = {instance.id for instance in context.aws.instances()}
        self._requests_before = len(context.aws.capacity_requests())
        self._calls_before = len(context.aws.journal())
        self._created: dict[str, str] = {}
        self._roles: set[str] = set()
        self._is_recorded = False
        self._retained_ids: set[str] = set()

    def destroy(self, hypervisor: Hypervisor) -> None:
        """Run `pulumi destroy`, also after a failed `up`, and record the remaining values of the report first."""
        self.context.clock.start("destroy")
        with self.context.recording_errors("cannot remove the injected faults"):  # destroy runs without them
            self.record_faults_without_effect()
            self.context.aws.remove_faults(self.context.account_faults)
        deployment = self.context.deployment
        if deployment is None:
            return
        self.record(deployment)
        with self.context.recording_errors("cannot read the journal of API calls"):
            self.check_permissions()
        if self.context.account_exited:
            return  # its resources do not exist any more
        try:
            destroyed = self.run_destroy(deployment)
        except DestroyError as error:
            self.context.add_error(f"destroy failed: {error}")
            return
        # A retained object is deleted with its bucket if the bucket is not retained: ids start with the bucket name.
        existing = {name for resource in self.context.aws.list_resources() for name in resource.names}
        retained = [resource for resource in destroyed.retained if {resource.id, resource.id.split("/")[0]} & existing]
        result = self.context.result
        result.retained = tuple(f"{resource.type} {resource.id}" for resource in retained)
        result.images = tuple(audit.baked_images(self.context.aws.region, self.context.options.stack_tag))
        self._retained_ids = {*(resource.id for resource in retained), *result.images}
        processed = (*destroyed.deleted, *destroyed.retained)
        result.resources_deleted = len([item for item in processed if item.type.startswith("aws:")]) - len(retained)
        try:
            wait_until(
                "the termination of all instances",
                lambda: not hypervisor.running_instances(),
                TERMINATION_TIMEOUT_SECONDS,
            )
        except FollowError as error:
            self.context.add_error(str(error))
        text = f"{result.resources_deleted} AWS resources deleted, {len(retained)} retained"
        self.context.display.print_line("destroy", text)

    def record(self, deployment: Deployment) -> None:
        """Record the values of the report that a destroy deletes; once, because a kept rehearsal may be destroyed."""
        if self._is_recorded:
            return
        self._is_recorded = True
        self.count_created_resources(deployment)
        self.record_substitutions()
        with self.context.recording_errors("cannot read the roles that the nodes skipped"):
            self.record_skipped_roles(deployment)
        with self.context.recording_errors("cannot read the nodes' events and metrics"):
            self.record_timeline(deployment)
        with self.context.recording_errors("cannot read the output of the ranks"):
            self.save_rank_output()

    def check_permissions(self) -> None:
        """Report API calls that AWS denied to the stack's roles."""
        for problem in audit.check_permissions(self.context.aws.journal()[self._calls_before :], self._roles):
            self.context.add_error(problem)

    def run_destroy(self, deployment: Deployment) -> DestroyResult:
        """Run destroy. If a signal interrupts it, run it again for the remaining resources."""
        try:
            with self.context.interrupts.raising_interrupts():
                return self.engine.destroy(deployment)
        except KeyboardInterrupt:
            self.context.display.print_line("failed", f"{INTERRUPTED}; destroy runs again")
            return self.engine.destroy(deployment)

    def count_created_resources(self, deployment: Deployment) -> None:
        """Count the AWS resources that the program has created so far; imported resources do not count."""
        created = [
            resource
            for resource in deployment.existing_resources
            if resource.type.startswith("aws:") and not resource.imported
        ]
        self._created |= {resource.urn: f"{resource.type} {resource.name}" for resource in created}
        self._roles |= {role.id for role in deployment.resources_of_type("aws:iam/role:Role") if role.exists}
        self.context.result.resources_created = len(self._created)

    def record_substitutions(self) -> None:
        """Add the substitutions of the backend, the engine and the emulated AWS to the report."""
        result = self.context.result
        result.substitutions += [
            *self.backend.substitutions(),
            *self.engine.substitutions(),
            *emulation_differences(result.faults),
        ]
        if self.context.options.bake:
            result.substitutions.append(
                Substitution(
                    original="the baked AMI",
                    replacement="the builder's disk, which is deleted with the rehearsal",
                    reason="the emulated AWS does not store disks",
                )
            )
        result.not_rehearsed += [*self.engine.not_rehearsed(), *self.backend.not_rehearsed()]
        if self.context.settings.storage.access_log_bucket:
            reason = "the emulated S3 checks their configuration and delivers none"
            result.not_rehearsed.append(NotRehearsed(subject="S3 server access logs", reason=reason))

    def record_skipped_roles(self, deployment: Deployment) -> None:
        """Add the roles that the nodes' playbooks skipped to the report."""
        buckets = [deployment.exports.get(name) for name in ("data_bucket", "staging_bucket")]
        if all(buckets):
            data, staging = (Bucket(str(name), self.context.aws.region) for name in buckets)
            reason = partial(skip_reason, backend=self.backend.name)
            self.context.result.not_rehearsed += skipped_roles(data, staging, self.context.result.run, reason)

    def record_faults_without_effect(self) -> None:
        """Add the faults of --fault that had no effect to the report, and print them: they tested nothing."""
        injected = self.context.account_faults
        of_account = [fault for fault in self.context.aws.faults_without_effect() if fault in injected]
        faults = [*of_account, *self.context.run_faults_without_effect]
        self.context.result.faults_without_effect = tuple(map(format_fault, faults))
        for text in self.context.result.faults_without_effect:
            self.context.display.print_line("fault", f"{text} had no effect")

    def record_timeline(self, deployment: Deployment) -> None:
        """Read the data of the HTML page from the buckets, before they are deleted.

        They also have what the report does not know yet of a run that failed to start or was interrupted.
        """
        result = self.context.result
        run = fill_timeline(
            result.timeline,
            deployment,
            self.launched_instances(),
            self.context.aws.region,
            time.time(),
            trainer=self.context.settings.job.train is not None,
        )
        result.run = result.run or run
        if not result.nodes:
            nodes = result.timeline.nodes
            result.nodes = len({node.instance for node in nodes if node.role == "worker" and node.has_run})
        result.losses = result.losses or audit.find_losses(result.timeline.metrics or [])

    def save_rank_output(self) -> None:
        """Write the output of the ranks to logs.txt, unless the stage that downloads the results has done so."""
        options, run = self.context.options, self.context.result.run
        file = options.folder / LOGS
        if run is None or file.exists():
            return
        cluster = Cluster(options.stack, self.context.aws.region, project=options.project)
        if lines := [f"{writer}: {line}" for writer, line in read_logs(cluster, run, ".")]:
            file.write_text("\n".join([*lines, ""]))
            self.context.display.print_line("logs", f"output of the ranks: {file}")

    def launched_instances(self) -> list[InstanceRecord]:
        """Return the instances that the stack launched in this rehearsal, also terminated ones."""
        instances = instances_of_stack(self.context.aws.instances(), self.context.options.stack_tag)
        return [instance for instance in instances if instance.id not in self._instances_before]

    def save_node_logs(self) -> None:
        """Write the last log lines of all nodes to node-logs.txt, for errors without a clear message."""
        file = self.context.options.folder / "node-logs.txt"
        with self.context.recording_errors("cannot write the nodes' logs"):
            if tails := self.backend.log_tails():
                file.write_text(tails)
                self.context.display.print_line("logs", f"node logs: {file}")

    def audit_account(self) -> None:
        """Compare the account after destroy with the account before the rehearsal."""
        self.context.clock.start("audit")
        result = self.context.result
        result.billed = tuple(billed_by_type(self.launched_instances(), self.context.aws.now()))
        stack = self.context.options.stack_tag
        requests = self.context.aws.capacity_requests()[self._requests_before :]
        result.capacity_attempts = tuple(capacity_attempts(requests, stack))
        reservations = self.context.aws.capacity_reservations()
        result.unused_reservations = tuple(
            unused_by_type(reservation for reservation in reservations if reservation.tags.get(tags.STACK) == stack)
        )
        instances = instances_of_stack(self.context.aws.instances(), stack)
        running = [instance.id for instance in instances if instance.state != "terminated"]
        if running:
            self.context.add_error(f"instances are not terminated: {', '.join(running)}")
        resources_after = self.context.aws.list_resources()
        result.leaked = tuple(audit.leaked_resources(self._resources_before, resources_after, self._retained_ids))
        for problem in [
            *(f"leaked: {resource.service} {resource.kind} {resource.id}" for resource in result.leaked),
            *self.engine.check_calls(self._created, self.context.aws.journal()),
        ]:
            self.context.add_error(problem)
