"""The hypervisor: keeps the machines of a back-end equal to what the emulated EC2 says."""

import base64
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import boto3

from rehearsal.aws.control_models import InstanceTruth
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.hypervisor.backend import Backend, NodeSpec
from rehearsal.hypervisor.metadata import Credentials, Metadata, MetadataServer
from trainyard.aws import tags

POLL_SECONDS = 0.5
# EC2 gives a terminated instance some minutes to shut down; a rehearsed one that is done needs seconds.
SHUTDOWN_SECONDS = 45.0
ACCESS_KEY = "AKIAREHEARSALHYPERVIS"


def mine(instances: Iterable[InstanceTruth], stack: str) -> list[InstanceTruth]:
    """Those that no other stack claims: an account may serve several rehearsals, each with a hypervisor."""
    return [one for one in instances if one.tags.get(tags.STACK, stack) == stack]


@dataclass
class Machine:
    """A booted instance."""

    truth: InstanceTruth
    metadata: MetadataServer
    kill_at: float | None = None
    gone: bool = False


class Hypervisor:
    """Runs in a thread of its own from `with` to its end; then no node's process lives."""

    def __init__(self, aws: EmulatedAws, backend: Backend, stack: str, say: Callable[[str], None]) -> None:
        self._aws, self._backend, self._stack, self._say = aws, backend, stack, say
        self._machines: dict[str, Machine] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hypervisor")
        self.failure: str | None = None
        self._sts = boto3.client(
            "sts",
            endpoint_url=aws.endpoint,
            region_name=aws.region,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key="rehearsal",  # noqa: S106 (the emulated account knows no secrets)
        )

    def running(self) -> list[str]:
        """Instances whose machine is on."""
        return [name for name, machine in list(self._machines.items()) if not machine.gone]

    def reconcile(self) -> None:
        """Boot, stop and clear away what EC2's truth asks for, once."""
        for truth in mine(self._aws.instances(), self._stack):
            machine = self._machines.get(truth.id)
            if truth.state in {"pending", "running"} and machine is None:
                if self._has_its_disk(truth):
                    self._boot(truth)
            elif machine is not None:
                machine.truth = truth
                if truth.state in {"stopping", "stopped", "shutting-down", "terminated"}:
                    self._shut_down(machine)
                elif self._backend.switched_itself_off(truth.id):
                    self._aws.switched_off(truth.id)
                elif machine.kill_at is not None:
                    raise RuntimeError(f"{truth.id} was stopped and is started again, which is not rehearsed")

    def _has_its_disk(self, truth: InstanceTruth) -> bool:
        """Whether what it boots from is there. An image of a machine here is, once that machine is off."""
        if truth.image_source is None:
            return True
        source = self._machines.get(truth.image_source)
        if source is None:
            made = f"{truth.image}, made of {truth.image_source}"
            raise RuntimeError(f"{truth.id} boots from {made}, whose disk is not in this rehearsal")
        return source.gone

    def _boot(self, truth: InstanceTruth) -> None:
        name = truth.id

        def current() -> Mapping[str, Any]:
            seen = self._machines[name].truth if name in self._machines else truth
            return {**seen.model_dump(), "user_data": _text(seen.user_data)}

        metadata = Metadata(current, lambda role: self._assume(role, name))
        server = MetadataServer(metadata, self._backend.plug(name, truth.private_ip))
        self._machines[name] = Machine(truth, server)
        self._backend.boot(
            NodeSpec(
                id=name,
                address=truth.private_ip,
                user_data=_text(truth.user_data),
                metadata_endpoint=server.endpoint,
                made_of=truth.image_source,
                environment={
                    "AWS_ENDPOINT_URL": self._backend.reach(self._aws.endpoint),
                    "AWS_CONFIG_FILE": os.devnull,
                    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                },
            )
        )

    def _shut_down(self, machine: Machine) -> None:
        name = machine.truth.id
        if machine.gone:
            return
        if machine.kill_at is None:
            machine.kill_at = time.monotonic() + SHUTDOWN_SECONDS
            self._backend.stop(name)
        if not self._backend.alive(name) or time.monotonic() > machine.kill_at:
            self._remove(machine)

    def _remove(self, machine: Machine) -> None:
        self._backend.kill(machine.truth.id)
        machine.metadata.close()
        machine.gone = True

    def _assume(self, role: str, instance: str) -> Credentials:
        """Credentials of the instance's role, as EC2 gets them: session name is the instance id."""
        answer = self._sts.assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{role}", RoleSessionName=instance)
        found = answer["Credentials"]
        return {
            "AccessKeyId": found["AccessKeyId"],
            "SecretAccessKey": found["SecretAccessKey"],
            "Token": found["SessionToken"],
            "Expiration": found["Expiration"].strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _run(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            try:
                self.reconcile()
            except Exception as error:
                self.failure = f"the hypervisor can't follow EC2: {type(error).__name__}: {error}"
                self._say(self.failure)
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        for machine in self._machines.values():
            if not machine.gone:
                self._remove(machine)


def _text(user_data: str) -> str:
    return base64.b64decode(user_data).decode() if user_data else ""
