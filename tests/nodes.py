"""Booted nodes in an emulated account, from their user data to the job agent, without the Pulumi program."""

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
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.nspawn.backend import NspawnBackend
from rehearsal.hypervisor.nspawn.machine import Machine
from tests.clusters import create_instance_profile, ubuntu_image_id
from tests.manifests import MANIFEST as STANDARD
from tests.polling import eventually
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.models.events import AgentEvent, PlaybookEvent, TaskEvent
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, bundle_key
from trainyard.models.manifest import Archive, Job, Manifest
from trainyard.models.run import RunRecord
from trainyard.models.streams import Cursor, node_events

ROOT = Path(__file__).parents[1]
REGION = "us-east-1"
RUN = "20260101-000000-test-0000"
_numbers = count(1)


@dataclass
class BootedCluster:
    """An account with a bundle, a manifest and a current run. Launched instances boot as machines."""

    stack: str
    backend: NspawnBackend
    data: Bucket
    staging: Bucket
    manifest: Manifest
    launched: list[str] = field(default_factory=list)

    @property
    def manifest_uri(self) -> str:
        """S3 URI of the manifest."""
        return f"s3://{self.staging.name}/{MANIFEST}"

    def publish_manifest(self, packed: Packed | None = None, **node: Any) -> None:
        """Write a manifest with another bundle, or with changed fields under `node`."""
        changes: dict[str, Any] = {}
        if packed is not None:
            key = bundle_key(packed.sha256)
            self.staging.write(key, packed.data)
            changes["bundle"] = Archive(uri=f"s3://{self.staging.name}/{key}", sha256=packed.sha256)
        if node:
            changes["node"] = self.manifest.node.model_copy(update=node)
        self.manifest = self.manifest.model_copy(update=changes)
        self.staging.write(MANIFEST, self.manifest.model_dump_json(indent=1).encode())

    def publish_run(self, container: str | None = None) -> None:
        """Write the record of the run. `container`: image of its job, which may differ from that of the manifest."""
        job = self.manifest.job.model_copy(update={"container": container})
        self.staging.write(CURRENT_RUN, _run_record(self.manifest, job).model_dump_json().encode())

    def launch_worker(self, image: str | None = None) -> str:
        """Launch a worker, which the hypervisor boots. Returns its instance id. `image`: AMI id; default: Ubuntu."""
        text = user_data("worker", "workers", self.manifest_uri, REGION, ACCOUNT, ROOT)
        instance_tags = [{"Key": tags.STACK, "Value": self.manifest.stack_tag}]
        response = client("ec2", REGION).run_instances(
            ImageId=image or ubuntu_image_id(REGION),
            InstanceType="c7i.xlarge",
            MinCount=1,
            MaxCount=1,
            UserData=text,
            IamInstanceProfile={"Name": self.stack},
            TagSpecifications=[{"ResourceType": "instance", "Tags": instance_tags}],
        )
        name: str = response["Instances"][0]["InstanceId"]
        self.launched.append(name)
        return name

    def terminate(self, instances: list[str]) -> None:
        """Terminate instances and wait until their machines are off."""
        if instances:
            client("ec2", REGION).terminate_instances(InstanceIds=instances)
            eventually(lambda: not any(map(self.backend.is_running, instances)), f"the termination of {instances}")

    def machine(self, instance: str) -> Machine:
        """Return the machine of an instance, once it has booted."""
        eventually(lambda: instance in self.backend.machines, f"the machine of {instance}")
        return self.backend.machines[instance]

    def events(self, instance: str) -> list[Any]:
        """Return all events of a node, sorted by time."""
        events = node_events(Cursor(self.data, RunLayout(RUN).events))
        return sorted((event for event in events if event.instance == instance), key=lambda event: event.time)

    def playbook_events(self, instance: str) -> list[PlaybookEvent]:
        """Return the events of playbook runs that have ended."""
        events = [event for event in self.events(instance) if isinstance(event, PlaybookEvent)]
        return [event for event in events if event.status != "started"]

    def changed_tasks(self, instance: str) -> list[str]:
        """Return the tasks of the last playbook run that changed something, as `role: task`."""
        events = self.events(instance)
        start = max(event.time for event in events if isinstance(event, PlaybookEvent) and event.status == "started")
        tasks = [event for event in events if isinstance(event, TaskEvent) and event.time >= start]
        return [f"{event.ansible_role}: {event.task}" for event in tasks if event.status == "changed"]

    def wait_for_playbook(self, instance: str, number: int, timeout_seconds: float = 120.0) -> PlaybookEvent:
        """Wait until a playbook run has ended. Returns its event; `number` counts the runs from 1."""
        eventually(
            lambda: len(self.playbook_events(instance)) >= number,
            f"playbook run {number} of {instance}",
            timeout_seconds,
        )
        return self.playbook_events(instance)[number - 1]

    def rerun_playbook(self, instance: str) -> PlaybookEvent:
        """Restart the node's unit, as a boot does. Returns the event of its playbook run."""
        before = len(self.playbook_events(instance))
        self.machine(instance).run_command("systemctl", "restart", "--no-block", "trainyard-node.service")
        return self.wait_for_playbook(instance, before + 1)

    def is_ready(self, instance: str) -> bool:
        """Return whether the job agent of the node has reported that it is ready."""
        return any(isinstance(event, AgentEvent) and event.state == "ready" for event in self.events(instance))


@contextmanager
def boot_cluster(folder: Path, aws: EmulatedAws, packed: Packed | None = None) -> Iterator[BootedCluster]:
    """Create the account's objects and a hypervisor that boots all instances of the account.

    The environment variables must name the account, and no other test may use it.
    """
    assert not aws.instances(), "another test uses this account"
    stack = f"nodes-{next(_numbers)}"
    s3 = boto3.client("s3", region_name=REGION)
    for kind in ("data", "staging"):
        s3.create_bucket(Bucket=f"{stack}-{kind}")
    create_instance_profile(stack)
    manifest = STANDARD.model_copy(
        update={"stack": stack, "data_bucket": f"{stack}-data", "staging_bucket": f"{stack}-staging"}
    )
    data, staging = Bucket(manifest.data_bucket, REGION), Bucket(manifest.staging_bucket, REGION)
    log: list[str] = []
    with (
        NspawnBackend(folder, log.append) as backend,
        Hypervisor(aws, backend, manifest.stack_tag, log.append),
    ):
        cluster = BootedCluster(stack=stack, backend=backend, data=data, staging=staging, manifest=manifest)
        cluster.publish_manifest(packed or pack_bundle(ROOT), venv=sys.prefix)
        cluster.publish_run()
        yield cluster


def _run_record(manifest: Manifest, job: Job) -> RunRecord:
    now = time.time()
    return RunRecord(
        run=RUN,
        created=now,
        deadline=now + 3600,
        manifest_digest=manifest.digest(),
        nodes=1,
        processes_per_node=1,
        job=job,
        limits=manifest.limits,
    )
