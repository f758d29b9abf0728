"""What the Pulumi program tells the nodes: `manifest.json` in the staging bucket. Holds no clock and no secret."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue

from trainyard.base import Contract
from trainyard.config.training import TrainerConfig

Market = Literal["on-demand", "spot", "capacity-block"]
SystemRole = Literal["nvidia_driver", "cuda", "efa", "container", "nvme", "lustre"]


class Archive(Contract):
    """A content-addressed gzip'd tar archive in S3."""

    uri: str = Field(description="S3 URI.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the archive.")


class Head(Contract):
    """The head instance."""

    instance: str = Field(description="EC2 instance id.")
    address: str = Field(description="Private address.")
    rendezvous_port: int = Field(description="TCP port of the rendezvous store.")


class Gpus(Contract):
    """What roles and verification must know of a node's GPUs."""

    model: str = Field(description="NVIDIA's model name, e.g. A100.")
    driver: Literal["open", "proprietary"] = Field(description="Kernel modules of the driver that they need.")
    nvswitch: bool = Field(description="Whether they need Fabric Manager.")
    nvlink5: bool = Field(
        False, description="Whether their NVLink is of the fifth generation: it has a subnet manager."
    )
    clocks: tuple[int, int] | None = Field(None, description="Application clocks, memory and graphics, MHz.")


class Hardware(Contract):
    """What the catalog says of a group's instance type, as far as nodes need it."""

    gpus: Gpus | None = Field(None, description="Its GPUs; none for CPU types.")
    disks: int = Field(0, ge=0, description="NVMe disks of the instance store.")
    matmul_tflops: float | None = Field(None, gt=0, description="Least TFLOP/s of a bf16 matrix product on one GPU.")
    nvlink_gbs: float | None = Field(
        None, gt=0, description="Least bus bandwidth of an all-reduce within a node, GB/s."
    )
    network_gbs: float | None = Field(None, gt=0, description="Least bus bandwidth of one over all nodes by EFA, GB/s.")


class WorkerGroup(Contract):
    """One Auto Scaling group of workers."""

    name: str = Field(description="Name of the group in the stack, e.g. workers.")
    autoscaling_group: str = Field(description="Name of the Auto Scaling group.")
    lifecycle_hook: str = Field(description="Name of its termination lifecycle hook, which every leaving node passes.")
    instance_type: str = Field(description="EC2 instance type.")
    nodes: int = Field(gt=0, description="Nodes that a launch starts, all or none.")
    subnets: tuple[str, ...] = Field(min_length=1, description="Subnet ids that the group may use.")
    processes_per_node: int = Field(gt=0, description="Worker processes of torchrun on each node.")
    gpus: int = Field(ge=0, description="GPUs of each node; 0 for CPU nodes.")
    efa_interfaces: int = Field(ge=0, description="EFA devices of each node; 0 where EFA is not used.")
    hardware: Hardware = Field(default_factory=Hardware, description="What else its type is.")
    market: Market = Field(
        "on-demand", description="Where its nodes come from; those of a capacity reservation count as on-demand."
    )
    ends: float | None = Field(
        None,
        description="Unix time at which AWS takes the group's capacity away, e.g. of a Capacity Block; none: never.",
    )

    @property
    def spot(self) -> bool:
        """Whether AWS may take the nodes back, with two minutes' notice."""
        return self.market == "spot"

    @property
    def launched_by(self) -> Literal["launch-instances", "desired-capacity"]:
        """How nodes are asked for: by Auto Scaling's synchronous LaunchInstances, or by its desired capacity where that
        call does not reach (Capacity Blocks)."""
        return "desired-capacity" if self.market == "capacity-block" else "launch-instances"


class Fsx(Contract):
    """The FSx for Lustre file system."""

    dns_name: str = Field(description="DNS name.")
    mount_name: str = Field(description="Lustre mount name.")
    mount_point: str = Field("/fsx", description="Where nodes mount it.")


class NodeSystem(Contract):
    """How nodes come to their software."""

    system: Literal["configure", "as-is"] = Field(
        "configure",
        description="configure: the play changes the system and verifies what the image brings (driver, EFA). as-is: "
        "the image is complete, the play only verifies the Python environment and starts services.",
    )
    leave_out: tuple[SystemRole, ...] = Field(
        (), description="Roles that the play leaves out though the stack calls for them: the image has seen to that."
    )
    variables: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Variables of the play's roles, over their defaults in playbooks/roles/*/defaults/main.yml.",
    )
    accelerators: bool = Field(
        True, description="Whether the job uses the nodes' GPUs and EFA devices; false runs it on their CPUs."
    )
    venv: str | None = Field(
        None, description="Path on the nodes of an existing Python environment for the job; none: the play makes one."
    )
    package_index: str | None = Field(
        None,
        description="URL of the Python package index, or where wheels lie (a folder, or s3://bucket/prefix/), for the "
        "nodes; none: pip's default.",
    )

    @property
    def wheels_in_s3(self) -> str | None:
        """The package index, where that is a prefix in S3: nodes need the right to read it."""
        return self.package_index if (self.package_index or "").startswith("s3://") else None


class Job(Contract):
    """The job as nodes run it."""

    name: str = Field(description="Name of the job.")
    source: Archive | None = Field(description="The user's sources; none for the built-in trainer.")
    command: tuple[str, ...] | None = Field(
        description="Script and arguments that torchrun runs in the source's folder; none for the built-in trainer."
    )
    train: TrainerConfig | None = Field(description="Configuration of the built-in trainer; none for a user's job.")
    data_uri: str = Field(description="DATA_URI: the dataset's prefix in S3.")
    builtin_corpus: bool = Field(description="Whether the launch may fill an empty DATA_URI with the built-in corpus.")
    resume: str | None = Field(description="Run whose newest checkpoint a new run starts from.")
    container: str | None = Field(None, description="Image that the command runs in; none: the node's environment.")
    secrets: dict[str, str] = Field(description="Environment variable -> name of the SSM parameter with its value.")
    environment: dict[str, str] = Field(description="Plain environment variables of the job.")
    checkpoint_on_request: bool = Field(
        False, description="Whether the user's job saves when CHECKPOINT_REQUEST appears, as the built-in trainer does."
    )

    @property
    def saves_on_request(self) -> bool:
        return self.train is not None or self.checkpoint_on_request


class Limits(Contract):
    """Deadlines that nodes, controller and launch hold."""

    bring_up_minutes: float = Field(gt=0, description="Minutes from the launch until the job must have started.")
    lease_minutes: float = Field(gt=0, description="Minutes after which AWS ends the workers unless renewed.")
    time_limit_minutes: float = Field(
        gt=0, description="Minutes after the launch at which the workers end in any case."
    )
    idle_minutes: float | None = Field(
        None,
        gt=0,
        description="Minutes without work on any node's GPUs (CPUs, where the job uses none) that end the run; none: "
        "no such limit.",
    )
    verify_minutes: float = Field(
        0.0, ge=0, description="Minutes that a check of the nodes before the job may take; 0: no check."
    )


# What a run may change while it goes on.
SIZES_AND_DEADLINES: Mapping[str, Any] = {"limits": True, "groups": {"__all__": {"nodes", "ends"}}}


class Manifest(Contract):
    """All that a node or the launch must know of the cluster."""

    project: str = Field(description="Pulumi project.")
    stack: str = Field(description="Pulumi stack.")
    account: str = Field(pattern="^[0-9]{12}$", description="AWS account id.")
    region: str = Field(description="AWS region.")
    partition: str = Field(description="AWS partition, e.g. aws.")
    bundle: Archive = Field(description="What nodes configure themselves from.")
    data_bucket: str = Field(description="Bucket that outlives the cluster.")
    staging_bucket: str = Field(description="Bucket that goes with the cluster.")
    head: Head = Field(description="The head instance.")
    groups: tuple[WorkerGroup, ...] = Field(
        min_length=1, description="Worker groups: together they are the cluster's nodes."
    )
    fsx: Fsx | None = Field(description="The shared file system, where the stack has one.")
    node: NodeSystem = Field(description="How nodes come to their software.")
    job: Job = Field(description="The job.")
    limits: Limits = Field(description="Deadlines.")

    @property
    def nodes(self) -> int:
        """Nodes of all groups together."""
        return sum(group.nodes for group in self.groups)

    @property
    def ends(self) -> float | None:
        """Unix time at which the first group loses its capacity, and with it the run its nodes; none: never."""
        return min((group.ends for group in self.groups if group.ends is not None), default=None)

    def digest(self) -> str:
        """SHA-256 of all but sizes and deadlines: a run of the same digest can become what this manifest says."""
        told = self.model_dump(mode="json", exclude=SIZES_AND_DEADLINES)
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
