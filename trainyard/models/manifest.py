"""Configuration that the Pulumi program passes to nodes: `manifest.json` in the staging bucket.

It contains no time of its creation and no secrets.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from trainyard.aws import tags
from trainyard.base import StrictModel
from trainyard.config.shared_settings import FSX_MOUNT_POINT, RESERVED_MARKETS, JobSpec, Market, NodeSettings
from trainyard.models.layout import split_s3_uri


class Archive(StrictModel):
    """A content-addressed tar archive in S3."""

    uri: str = Field(description="S3 URI.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")


class Gpus(StrictModel):
    """Properties of a node's GPUs that roles and health checks need."""

    model: str = Field(description="NVIDIA's model name, e.g. A100.")
    driver: Literal["open", "proprietary"] = Field(description="Kernel modules of the driver that the GPUs need.")
    nvswitch: bool = Field(description="Whether the GPUs need Fabric Manager.")
    nvlink5: bool = Field(False, description="Whether the GPUs have NVLink 5, which needs a subnet manager.")
    clocks: tuple[int, int] | None = Field(None, description="Application clocks, memory and graphics, MHz.")


class Hardware(StrictModel):
    """Properties of a group's instance type from the catalog that nodes need."""

    gpus: Gpus | None = Field(None, description="GPUs of the type; null for CPU types.")
    disks: int = Field(0, ge=0, description="Number of NVMe disks of the instance store.")
    min_matmul_tflops: float | None = Field(
        None, gt=0, description="Minimum TFLOP/s of a bf16 matrix product on one GPU."
    )
    min_nvlink_gbs: float | None = Field(
        None, gt=0, description="Minimum bus bandwidth of an all-reduce within a node, GB/s."
    )
    min_network_gbs: float | None = Field(
        None, gt=0, description="Minimum bus bandwidth of an all-reduce over all nodes by EFA, GB/s."
    )


class Subnet(StrictModel):
    """A subnet in which workers may be."""

    id: str = Field(description="Subnet id.")
    zone: str = Field(description="Availability Zone of the subnet.")


class WorkerGroup(StrictModel):
    """One Auto Scaling group of workers."""

    name: str = Field(description="Name of the group in the stack, e.g. workers.")
    autoscaling_group: str = Field(description="Name of the Auto Scaling group.")
    lifecycle_hook: str = Field(
        description="Name of its termination lifecycle hook, which holds every terminating node."
    )
    instance_type: str = Field(description="EC2 instance type.")
    other_instance_types: dict[str, int] = Field(
        default_factory=dict,
        description="Other instance types that its Spot Instances may have -> NVMe instance store volumes of each.",
    )
    image: str | None = Field(None, description="AMI id of the group's launch template.")
    nodes: int = Field(gt=0, description="Number of nodes that a launch starts, all or none.")
    max_size: int = Field(gt=0, description="Maximum size of the Auto Scaling group while nodes may run.")
    subnets: tuple[Subnet, ...] = Field(
        min_length=1, description="Subnets that the group may use, in the order in which the launch tries them."
    )
    reservation: str | None = Field(None, description="Id of the capacity reservation that the settings name.")
    reserve: bool = Field(
        False,
        description="Whether the launch reserves the capacity of all nodes in an On-Demand Capacity Reservation first.",
    )
    placement_group_arn: str | None = Field(None, description="ARN of the cluster placement group of the nodes.")
    node_usd_per_hour: float = Field(0.0, ge=0, description="Maximum price of a node, USD an hour.")
    processes_per_node: int = Field(gt=0, description="Worker processes of torchrun on each node.")
    gpus: int = Field(ge=0, description="GPUs of each node; 0 for CPU nodes.")
    efa_interfaces: int = Field(ge=0, description="EFA devices of each node; 0 if EFA is not used.")
    hardware: Hardware = Field(default_factory=Hardware, description="Properties of the instance type.")
    instance_digest: str = Field(
        "", description="SHA-256 of the settings that only a new instance adopts, such as its type and its image."
    )
    market: Market = Field(
        "on-demand",
        description="Purchase option of its nodes; a capacity reservation counts as on-demand unless interruptible.",
    )
    capacity_start_time: float | None = Field(
        None, description="Unix time from which nodes can be launched, the start of a Capacity Block; null: now."
    )
    capacity_end_time: float | None = Field(
        None,
        description="Unix time at which the group's capacity ends, e.g. of a Capacity Block; null: never.",
    )

    def on_instance_type(self, name: str) -> "WorkerGroup":
        """Return the group with the instance type and the disks of a node of this type."""
        if name not in self.other_instance_types:
            return self
        hardware = self.hardware.model_copy(update={"disks": self.other_instance_types[name]})
        return self.model_copy(update={"instance_type": name, "hardware": hardware})

    @property
    def spot(self) -> bool:
        """Whether the nodes are Spot Instances."""
        return self.market == "spot"

    @property
    def interruptible(self) -> bool:
        """Whether AWS may interrupt the nodes, with two minutes' notice."""
        return self.market in ("spot", "interruptible-capacity-reservation")

    @property
    def launch_method(self) -> Literal["launch-instances", "desired-capacity"]:
        """Auto Scaling API by which the launch adds nodes.

        LaunchInstances is synchronous. The desired capacity is for Capacity Blocks and interruptible reservations:
        AWS does not document them for LaunchInstances.
        """
        return "desired-capacity" if self.market in RESERVED_MARKETS else "launch-instances"


class Fsx(StrictModel):
    """The FSx for Lustre file system."""

    dns_name: str = Field(description="DNS name.")
    mount_name: str = Field(description="Lustre mount name.")
    mount_point: str = Field(FSX_MOUNT_POINT, description="Mount point on the nodes.")
    efa: bool = Field(False, description="Whether nodes with EFA interfaces use them for the file system.")


class Job(JobSpec):
    """The job as nodes run it."""

    source: Archive | None = Field(description="Source archive of a custom job; null for the built-in trainer.")
    data_uri: str | None = Field(None, description="S3 prefix of the data; null: the job reads no data.")
    model_uri: str | None = Field(
        None, description="S3 prefix of the model, or hf:// and a model of the Hugging Face hub; null: no model."
    )

    @property
    def saves_on_request(self) -> bool:
        """Whether the job saves a checkpoint when the file CHECKPOINT_REQUEST appears."""
        return self.train is not None or self.checkpoint_on_request


class Limits(StrictModel):
    """Deadlines that nodes, controller and launch enforce."""

    startup_timeout_minutes: float = Field(
        gt=0, description="Minutes from the launch, or from the scheduled start, until the job must have started."
    )
    capacity_wait_minutes: float = Field(
        0.0, ge=0, description="Minutes that the launch waits for capacity that it reserves."
    )
    lease_minutes: float = Field(
        gt=0, description="Minutes after which AWS terminates the workers unless the lease is renewed."
    )
    time_limit_minutes: float = Field(
        gt=0,
        description="Minutes after the launch, or the scheduled start, until the workers are terminated in any case.",
    )
    idle_timeout_minutes: float | None = Field(
        None,
        gt=0,
        description="Minutes after which the run ends if all nodes' GPUs (CPUs if the job uses no GPUs) are idle; "
        "null: no such limit.",
    )
    health_check_timeout_minutes: float = Field(
        0.0, ge=0, description="Minutes that a health check of the nodes may take; 0: no health check."
    )
    smaller_sizes: tuple[int, ...] = Field(
        (), description="Numbers of nodes, ascending, with which the job continues while nodes are missing."
    )
    max_startup_replacements: int = Field(
        0, ge=0, description="Nodes whose startup failed that are replaced in one run before it ends."
    )
    replacement_minutes: float = Field(
        45.0, gt=0, description="Minutes for which a run waits for replacements of lost nodes before it ends."
    )
    keep_after_success_minutes: float = Field(
        0.0, ge=0, description="Minutes for which the nodes are kept for another run after a run has succeeded."
    )
    keep_after_failure_minutes: float = Field(
        0.0, ge=0, description="Minutes for which the nodes are kept for another run after the job has failed."
    )

    lock_results_days: int | None = Field(
        None,
        gt=0,
        description="Days after the end of a run that succeeded for which S3 Object Lock keeps its results; null: the "
        "controller locks nothing.",
    )

    @property
    def has_health_checks(self) -> bool:
        """Whether nodes must pass a health check before an attempt uses them."""
        return self.health_check_timeout_minutes > 0


# Fields that may change during a run. Nodes that run keep their image.
UPDATABLE_FIELDS: Mapping[str, Any] = {
    "limits": True,
    "spares": True,
    "base_usd_per_hour": True,
    "head_autoscaling_group": True,
    "termination": True,
    "groups": {
        "__all__": {
            "nodes",
            "max_size",
            "other_instance_types",
            "capacity_start_time",
            "capacity_end_time",
            "image",
            "subnets",
            "reservation",
            "reserve",
            "placement_group_arn",
            "node_usd_per_hour",
            "instance_digest",
        }
    },
}


class Termination(StrictModel):
    """Schedule group and role with which EventBridge Scheduler terminates the workers."""

    schedule_group: str = Field(description="Name of the schedule group of EventBridge Scheduler.")
    role_arn: str = Field(description="ARN of the role that its schedules assume.")


class Manifest(StrictModel):
    """Configuration of the cluster for nodes and launch."""

    # The module of the Pulumi program that produces the manifest, or a key of it: preflight names it in its messages.
    model_config = ConfigDict(json_schema_extra={"producer": "infra/components/manifest.py"})

    project: str = Field(description="Pulumi project.")
    stack: str = Field(description="Pulumi stack.")
    account: str = Field(pattern="^[0-9]{12}$", description="AWS account id.")
    region: str = Field(description="AWS region.")
    partition: str = Field(description="AWS partition, e.g. aws.")
    bundle: Archive = Field(
        description="Archive of the code and playbooks that nodes run.",
        json_schema_extra={"producer": "infra/components/archives.py"},
    )
    data_bucket: str = Field(
        description="Bucket that outlives the cluster.", json_schema_extra={"producer": "infra/components/storage.py"}
    )
    staging_bucket: str = Field(
        description="Bucket that is deleted with the cluster.",
        json_schema_extra={"producer": "infra/components/storage.py"},
    )
    job_role_arn: str = Field(
        description="ARN of the role of the job, which agents assume for it.",
        json_schema_extra={"producer": "infra/components/identity.py"},
    )
    termination: Termination = Field(description="Termination of the workers by EventBridge Scheduler.")
    head_autoscaling_group: str = Field(
        description="Name of the Auto Scaling group of the head, which AWS replaces when it fails.",
        json_schema_extra={"producer": "infra/components/head.py"},
    )
    groups: tuple[WorkerGroup, ...] = Field(
        min_length=1,
        description="Worker groups: their nodes are the nodes of the cluster.",
        json_schema_extra={"producer": "infra/components/workers.py"},
    )
    base_usd_per_hour: float = Field(
        ge=0, description="Price of the cluster without workers, USD an hour: it bills until destroy."
    )
    fsx: Fsx | None = Field(
        description="The shared file system, if the stack has one.",
        json_schema_extra={"producer": "infra/components/filesystem.py"},
    )
    spares: int = Field(ge=0, description="Nodes in the worker groups that replace lost nodes of the job.")
    node: NodeSettings = Field(description="How nodes get their software.")
    job: Job = Field(description="The job.")
    limits: Limits = Field(description="Deadlines.")

    @property
    def stack_tag(self) -> str:
        """The value of the tag that all resources of the stack have."""
        return tags.stack_tag(self.project, self.stack)

    @property
    def nodes(self) -> int:
        """Number of nodes of all groups, spare nodes included."""
        return sum(group.nodes for group in self.groups)

    @property
    def job_nodes(self) -> int:
        """Number of nodes of the job."""
        return self.nodes - self.spares

    @property
    def images(self) -> dict[str, str]:
        """AMI id of each worker group, by the group's name."""
        return {group.name: group.image for group in self.groups if group.image is not None}

    @property
    def capacity_end_time(self) -> float | None:
        """Earliest Unix time at which the capacity of a group ends, and with it the run; None: never."""
        return min(
            (group.capacity_end_time for group in self.groups if group.capacity_end_time is not None), default=None
        )

    @property
    def capacity_start_time(self) -> float | None:
        """Unix time from which the nodes of all groups can be launched; None: now."""
        return max(
            (group.capacity_start_time for group in self.groups if group.capacity_start_time is not None), default=None
        )

    @property
    def block_reservation_ids(self) -> tuple[str, ...]:
        """Ids of the reservations of the Capacity Blocks of the groups."""
        return tuple(
            group.reservation for group in self.groups if group.market == "capacity-block" and group.reservation
        )

    def local_data_path(self, job: Job) -> str:
        """Path of the folder on the nodes into which FSx imports the dataset of a job with `data: fsx`."""
        assert self.fsx is not None, "the settings are valid"
        assert job.data_uri is not None, "the settings are valid"
        return f"{self.fsx.mount_point}/{split_s3_uri(job.data_uri)[1]}"

    def digest(self) -> str:
        """SHA-256 of the manifest without head, sizes and deadlines: a run with this digest continues with it."""
        return _digest(self.model_dump(mode="json", exclude=UPDATABLE_FIELDS))

    def node_digest(self) -> str:
        """SHA-256 of what the node playbook reads: another value means that it must run again on the nodes."""
        groups = {"__all__": {*UPDATABLE_FIELDS["groups"]["__all__"], "processes_per_node"}}
        excluded = {**UPDATABLE_FIELDS, "groups": groups, "job": True}
        content = self.model_dump(mode="json", exclude=excluded)
        # The playbook waits until FSx has imported the index of the built-in trainer's dataset.
        is_imported = self.job.data == "fsx" and self.job.train is not None
        job = {"container": self.job.container, "imported": self.job.data_uri if is_imported else None}
        return _digest({**content, "job": job})

    def instance_digest(self) -> str:
        """SHA-256 of what only new instances adopt: another value means that a new run needs new instances."""
        return _digest([(group.autoscaling_group, group.instance_digest) for group in self.groups])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
