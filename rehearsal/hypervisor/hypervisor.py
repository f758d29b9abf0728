"""The hypervisor: boots and stops machines according to the instances of the emulated EC2."""

import base64
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil

from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.hypervisor.backend import Backend, NodeSpec
from rehearsal.hypervisor.metadata import Credentials, InstanceMetadata, MetadataServer
from rehearsal.hypervisor.processes import send_signal
from trainyard.aws import tags
from trainyard.config.catalog import catalog

POLL_SECONDS = 0.5
# EC2 gives a terminated instance some minutes to shut down; a rehearsed instance needs seconds.
SHUTDOWN_TIMEOUT_SECONDS = 45.0


def instances_of_stack(instances: Iterable[InstanceRecord], stack_tag: str) -> list[InstanceRecord]:
    """Return the instances without the tag of another stack: several rehearsals may share an account."""
    return [instance for instance in instances if instance.tags.get(tags.STACK, stack_tag) == stack_tag]


@dataclass
class Machine:
    """A booted instance. `kill_time`: monotonic time at which it is killed, set when its shutdown starts."""

    record: InstanceRecord
    metadata: MetadataServer
    kill_time: float | None = None
    removed: bool = False


class Hypervisor:
    """Polls EC2 in a thread while the context manager is entered. On exit it kills all machines.

    `failure` is the message of the first error. After it no machine boots; machines are still shut down, so that
    destroy does not wait for instances that never terminate.
    """

    def __init__(self, aws: EmulatedAws, backend: Backend, stack_tag: str, log: Callable[[str], None]) -> None:
        self._aws, self._backend, self._stack_tag, self._log = aws, backend, stack_tag, log
        self._machines: dict[str, Machine] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypervisor")
        self._boots_to_hang = 0
        self.failure: str | None = None
        self._sts = aws.session("ec2").client("sts", endpoint_url=aws.endpoint)

    def running_instances(self) -> list[str]:
        """Return the ids of the instances whose machines are not removed."""
        return [name for name, machine in list(self._machines.items()) if not machine.removed]

    def running_head(self) -> InstanceRecord | None:
        """Return the head of the stack; None while EC2 has none that runs."""
        records = [machine.record for machine in list(self._machines.values())]
        heads = (each for each in records if each.tags.get(tags.ROLE) == "head" and each.state == "running")
        return next(heads, None)

    @property
    def region(self) -> str:
        """Region of the emulated AWS."""
        return self._aws.region

    # What faults do to instances

    def processes(self, instance: str) -> list[psutil.Process]:
        """Return the processes of an instance."""
        return self._backend.processes(instance)

    def suspend(self, instance: str) -> None:
        """Suspend all processes of an instance, as if its kernel hangs."""
        self._send_signal(instance, signal.SIGSTOP)
        self._aws.report_responding(instance, False)

    def resume(self, instance: str) -> None:
        """Let the processes of a suspended instance continue."""
        self._send_signal(instance, signal.SIGCONT)
        self._aws.report_responding(instance, True)

    def _send_signal(self, instance: str, number: int) -> None:
        for process in self._backend.processes(instance):
            send_signal(process, number)

    def restart(self, instance: str) -> None:
        """Power an instance off and on again, unless it is terminating."""
        machine = self._machines[instance]
        if machine.kill_time is None and not machine.removed:
            self._backend.restart(instance)
            self._aws.report_responding(instance, True)

    def hang_next_boots(self, count: int) -> None:
        """Do not boot the next instances although they run according to EC2, which then reports them as impaired."""
        self._boots_to_hang = count

    def isolate(self, instances: Iterable[str], is_isolated: bool) -> None:
        """Drop the packets between these instances, or deliver them again."""
        for instance in instances:
            self._backend.isolate(instance, is_isolated)

    def fill_disk(self, instance: str, is_full: bool) -> None:
        """Use all free space of an instance's disk, or free it again."""
        self._backend.fill_disk(instance, is_full)

    def step_clock(self, instance: str, seconds: float) -> None:
        """Add seconds to the system time of an instance."""
        self._backend.step_clock(instance, seconds)

    # Machines according to EC2

    def reconcile(self) -> None:
        """Boot, stop and remove machines once, so that they match the instances of EC2."""
        for record in instances_of_stack(self._aws.instances(), self._stack_tag):
            machine = self._machines.get(record.id)
            if record.state == "running" and machine is None:
                if self.failure is None and self._is_disk_available(record):
                    self._boot(record)
            elif machine is not None:
                machine.record = record
                if record.state in {"stopping", "stopped", "shutting-down", "terminated"}:
                    self._shut_down(machine)
                elif self._backend.has_powered_off(record.id):
                    self._aws.report_shutdown(record.id)
                elif machine.kill_time is not None:
                    raise RuntimeError(
                        f"{record.id} was stopped and started again, which the rehearsal does not support"
                    )

    def _is_disk_available(self, record: InstanceRecord) -> bool:
        """Return whether the disk of its image can be used: an image of a machine is usable once the machine is off."""
        if record.image_source is None:
            return True
        source = self._machines.get(record.image_source)
        if source is None:
            image = f"{record.image}, created from {record.image_source}"
            raise RuntimeError(f"{record.id} boots from {image}, whose disk does not exist in this rehearsal")
        return source.removed

    def _boot(self, record: InstanceRecord) -> None:
        name = record.id

        def current_record() -> Mapping[str, Any]:
            current = self._machines[name].record if name in self._machines else record
            return {**current.model_dump(), "user_data": _decode(current.user_data)}

        metadata = InstanceMetadata(current_record, lambda role: self._assume_role(role, name))
        server = MetadataServer(metadata, self._backend.attach_network(name, record.private_ip))
        self._machines[name] = Machine(record, server)
        if self._boots_to_hang:
            self._boots_to_hang -= 1
            self._aws.report_responding(name, False)
            return
        self._backend.boot(
            NodeSpec(
                id=name,
                address=record.private_ip,
                user_data=_decode(record.user_data),
                metadata_endpoint=server.endpoint,
                image_source=record.image_source,
                gpus=_gpus(record.instance_type),
                environment={
                    "AWS_ENDPOINT_URL": self._backend.url_for_nodes(self._aws.node_endpoint),
                    "AWS_CONFIG_FILE": os.devnull,
                    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                },
            )
        )

    def _shut_down(self, machine: Machine) -> None:
        name = machine.record.id
        if machine.removed:
            return
        if machine.kill_time is None:
            machine.kill_time = time.monotonic() + SHUTDOWN_TIMEOUT_SECONDS
            self._backend.stop(name)
        if not self._backend.is_running(name) or time.monotonic() > machine.kill_time:
            self._remove(machine)

    def _remove(self, machine: Machine) -> None:
        self._backend.kill(machine.record.id)
        machine.metadata.close()
        machine.removed = True

    def _assume_role(self, role: str, instance: str) -> Credentials:
        """Return credentials of the instance's role, requested as EC2 does: the session name is the instance id."""
        response = self._sts.assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{role}", RoleSessionName=instance)
        credentials = response["Credentials"]
        return {
            "AccessKeyId": credentials["AccessKeyId"],
            "SecretAccessKey": credentials["SecretAccessKey"],
            "Token": credentials["SessionToken"],
            "Expiration": credentials["Expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self.reconcile()
            except Exception as error:
                if self.failure is None:
                    self.failure = f"the hypervisor failed: {type(error).__name__}: {error}"
                    self._log(self.failure)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        for machine in self._machines.values():
            if not machine.removed:
                self._remove(machine)


def _gpus(instance_type: str) -> int:
    known = catalog().get(instance_type)
    return known.gpu.count if known is not None and known.gpu is not None else 0


def _decode(user_data: str) -> str:
    return base64.b64decode(user_data).decode() if user_data else ""
