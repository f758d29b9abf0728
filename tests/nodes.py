"""Booted nodes of an emulated account, from their user-data on: the whole way, without the Pulumi program."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import boto3

from infra.packaging.archive import Packed
from infra.packaging.bundle import pack_bundle
from infra.packaging.user_data import user_data
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.nspawn.backend import NspawnBackend
from rehearsal.hypervisor.nspawn.machine import Machine
from tests.clusters import profile, ubuntu
from tests.manifests import MANIFEST as STANDARD
from tests.polling import eventually
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket, client
from trainyard.models.events import AgentEvent, PlayEvent, TaskEvent
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, bundle_key
from trainyard.models.manifest import Archive, Manifest
from trainyard.models.run import RunRecord
from trainyard.models.streams import Cursor, node_events

ROOT = Path(__file__).parents[1]
REGION = "us-east-1"
RUN = "20260101-000000-test-0000"
_numbers = count(1)


@dataclass
class Cloud:
    """An account with a bundle, a manifest and a current run; nodes boot when they are launched."""

    stack: str
    backend: NspawnBackend
    data: Bucket
    staging: Bucket
    manifest: Manifest
    launched: list[str] = field(default_factory=list)

    @property
    def manifest_uri(self) -> str:
        return f"s3://{self.staging.name}/{MANIFEST}"

    def publish(self, packed: Packed | None = None, **node: Any) -> None:
        """A manifest with another bundle, or with other keys under `node`."""
        changes: dict[str, Any] = {}
        if packed is not None:
            key = bundle_key(packed.sha256)
            self.staging.write(key, packed.data)
            changes["bundle"] = Archive(uri=f"s3://{self.staging.name}/{key}", sha256=packed.sha256)
        if node:
            changes["node"] = self.manifest.node.model_copy(update=node)
        self.manifest = self.manifest.model_copy(update=changes)
        self.staging.write(MANIFEST, self.manifest.model_dump_json(indent=1).encode())

    def launch(self, image: str | None = None) -> str:
        """A worker, of Ubuntu where no image is named; its instance id. The hypervisor boots it."""
        text = user_data("worker", "workers", self.manifest_uri, REGION, ROOT)
        named = [{"Key": tags.STACK, "Value": self.stack}]
        made = client("ec2", REGION).run_instances(
            ImageId=image or ubuntu(REGION),
            InstanceType="c7i.xlarge",
            MinCount=1,
            MaxCount=1,
            UserData=text,
            IamInstanceProfile={"Name": self.stack},
            TagSpecifications=[{"ResourceType": "instance", "Tags": named}],
        )
        name: str = made["Instances"][0]["InstanceId"]
        self.launched.append(name)
        return name

    def terminate(self, instances: list[str]) -> None:
        """Until their machines are off."""
        if instances:
            client("ec2", REGION).terminate_instances(InstanceIds=instances)
            eventually(lambda: not any(map(self.backend.alive, instances)), f"the end of {instances}")

    def machine(self, instance: str) -> Machine:
        eventually(lambda: instance in self.backend.machines, f"the machine of {instance}")
        return self.backend.machines[instance]

    def events(self, instance: str) -> list[Any]:
        """All that a node has told so far, in the order of its streams."""
        found = node_events(Cursor(self.data, RunLayout(RUN).events))
        return sorted((event for event in found if event.instance == instance), key=lambda event: event.time)

    def plays(self, instance: str) -> list[PlayEvent]:
        """Plays that have ended, as the node told."""
        found = [event for event in self.events(instance) if isinstance(event, PlayEvent)]
        return [event for event in found if event.status != "started"]

    def changed(self, instance: str) -> list[str]:
        """Tasks of the newest play that changed something, `role: task`."""
        events = self.events(instance)
        began = max(event.time for event in events if isinstance(event, PlayEvent) and event.status == "started")
        tasks = [event for event in events if isinstance(event, TaskEvent) and event.time >= began]
        return [f"{event.ansible_role}: {event.task}" for event in tasks if event.status == "changed"]

    def play(self, instance: str, number: int, seconds: float = 120.0) -> PlayEvent:
        """The node's play of that number, from 1, once it has ended."""
        eventually(lambda: len(self.plays(instance)) >= number, f"play {number} of {instance}", seconds)
        return self.plays(instance)[number - 1]

    def again(self, instance: str) -> PlayEvent:
        """Run the node's unit once more, as at a boot; how its play ends."""
        before = len(self.plays(instance))
        self.machine(instance).run("systemctl", "restart", "--no-block", "trainyard-node.service")
        return self.play(instance, before + 1)

    def ready(self, instance: str) -> bool:
        """Whether the job's agent has told that it is."""
        return any(isinstance(event, AgentEvent) and event.state == "ready" for event in self.events(instance))


@contextmanager
def cloud(folder: Path, aws: EmulatedAws, packed: Packed | None = None) -> Iterator[Cloud]:
    """Until the end of `with`; the account is the one of the environment, and no other's: all its instances boot."""
    assert not aws.instances(), "another test uses this account"
    stack = f"nodes-{next(_numbers)}"
    s3 = boto3.client("s3", region_name=REGION)
    for kind in ("data", "staging"):
        s3.create_bucket(Bucket=f"{stack}-{kind}")
    profile(stack)
    manifest = STANDARD.model_copy(
        update={"stack": stack, "data_bucket": f"{stack}-data", "staging_bucket": f"{stack}-staging"}
    )
    data, staging = Bucket(manifest.data_bucket, REGION), Bucket(manifest.staging_bucket, REGION)
    told: list[str] = []
    with (
        NspawnBackend(folder, told.append) as backend,
        Hypervisor(aws, backend, stack, told.append),
    ):
        made = Cloud(stack=stack, backend=backend, data=data, staging=staging, manifest=manifest)
        made.publish(packed or pack_bundle(ROOT), venv=sys.prefix)
        staging.write(CURRENT_RUN, _run(made.manifest).model_dump_json().encode())
        yield made


def _run(manifest: Manifest) -> RunRecord:
    now = time.time()
    return RunRecord(
        run=RUN,
        created=now,
        deadline=now + 3600,
        manifest=manifest.digest(),
        nodes=1,
        processes_per_node=1,
        job=manifest.job,
        limits=manifest.limits,
    )
