"""The settings of a stack: the value of `trainyard:cluster`. The descriptions are the reference."""

from pydantic import Field

from trainyard.aws.ecr import ECR_SERVICES, EcrImage, parse_ecr_image
from trainyard.base import StrictModel
from trainyard.config.catalog import InstanceType, InstanceTypeName, catalog
from trainyard.config.field_types import (
    ImageName,
    Integer,
    TagKey,
    TagValue,
    split_image_name,
)
from trainyard.config.settings.capacity import CapacitySettings, GroupPlan
from trainyard.config.settings.guardrails import GuardrailSettings, IdentitySettings
from trainyard.config.settings.job import JobSettings, LaunchSettings
from trainyard.config.settings.network import NODE_SERVICES, SESSION_SERVICES, NetworkSettings
from trainyard.config.settings.storage import FsxSettings, StorageSettings
from trainyard.config.shared_settings import NodeSettings
from trainyard.errors import Problem

MAX_NODES = 1024
PLAIN_IMAGES = ("ubuntu-24.04", "debian-12")  # without the NVIDIA driver
# Throughput of gp3 volumes, MiB/s: included in the price, and of the root volumes of GPU nodes, which read drivers,
# packages and containers at startup. The ratio to IOPS is at most 0.25, so 500 need 2,000 of the 3,000 included IOPS.
# Source: EBS user guide, "Amazon EBS General Purpose SSD volumes".
GP3_THROUGHPUT, GPU_NODE_THROUGHPUT = 125, 500


class StackSettings(StrictModel):
    """One training cluster and its job."""

    instance_type: InstanceTypeName = Field(
        description="EC2 instance type of the workers, listed in the hardware catalog."
    )
    nodes: Integer = Field(gt=0, le=MAX_NODES, description="Nodes of the job. All of them start, or none.")
    spares: Integer = Field(
        0,
        ge=0,
        description="Additional worker nodes: they are launched with the others, pass the health check and replace "
        "lost nodes at once. They are billed as the others.",
    )
    min_nodes: Integer | None = Field(
        None,
        gt=0,
        description="Nodes with which the job continues while lost nodes cannot be replaced: with the same global "
        "batch size, and with all nodes again when they are ready. null: the job waits for all nodes.",
    )
    capacity: CapacitySettings = Field(
        default_factory=CapacitySettings, description="Purchase option of the workers, and the search for capacity."
    )
    image: ImageName | None = Field(
        None,
        description="AMI of the workers: deep-learning (the AWS Deep Learning AMI, with driver and EFA), "
        "ubuntu-24.04 or debian-12, each at the release of infra/lookups/image.py or at a named one "
        "(deep-learning-20260724); or an AMI id. null: deep-learning on GPU types, else ubuntu-24.04. Only a changed "
        "value changes the AMI of the workers: a newer version of this project does not. The head boots the newest "
        "ubuntu-24.04 (or debian-12, as the workers) that was released before the month of the update; with "
        "ubuntu-24.04 or debian-12 at a named release, that release.",
    )
    head_instance_type: InstanceTypeName = Field(
        "t3.large", description="EC2 instance type of the head, which runs the controller."
    )
    root_volume_gib: Integer = Field(100, ge=30, le=16384, description="Root volume of each node, GiB of gp3.")
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="The network.")
    storage: StorageSettings = Field(default_factory=StorageSettings, description="The data bucket and its KMS key.")
    fsx: FsxSettings | None = Field(None, description="Shared FSx for Lustre file system; null: S3 only.")
    identity: IdentitySettings = Field(default_factory=IdentitySettings, description="IAM roles of head and workers.")
    guardrails: GuardrailSettings = Field(
        default_factory=GuardrailSettings, description="Limits of cost and idle time."
    )
    node: NodeSettings = Field(default_factory=NodeSettings, description="How nodes get their software.")
    job: JobSettings = Field(description="The job.")
    launch: LaunchSettings = Field(default_factory=LaunchSettings, description="Timeouts of startup and lease.")
    tags: dict[TagKey, TagValue] = Field(
        default_factory=dict, description="Tags on every resource that supports them, for cost allocation."
    )

    @property
    def worker_type(self) -> InstanceType:
        """The catalog's entry of the workers' instance type."""
        return _entry(self.instance_type)

    @property
    def head_type(self) -> InstanceType:
        """The catalog's entry of the head's instance type."""
        return _entry(self.head_instance_type)

    @property
    def required_types(self) -> list[str]:
        """The instance types of workers and head that a zone must offer."""
        return sorted({self.instance_type, self.head_instance_type})

    @property
    def instance_types(self) -> list[str]:
        """All instance types: those of workers and head, and the others that Spot Instances may have."""
        others = {entry.name for group in self.groups for entry in self.types_of(group)}
        return sorted(others.union(self.required_types))

    def types_of(self, group: GroupPlan) -> tuple[InstanceType, ...]:
        """The instance types that the group's nodes may have; the first is `instance_type`."""
        others = [_entry(name) for name in group.other_types]
        if group.equal_gpus:
            others = [entry for entry in catalog().instance_types if self.difference_to_worker(entry) is None]
        return (self.worker_type, *(entry for entry in others if entry.name != self.instance_type))

    def difference_to_worker(self, entry: InstanceType) -> str | None:
        """Why nodes cannot have this instance type in place of the workers' type; None if they can."""
        worker = self.worker_type
        if not entry.has_gpus_of(worker):
            return f"its GPUs are not those of {worker.name}"
        if not entry.supports_interfaces_of(worker, self.efa):
            return f"it does not support the EFA interfaces of {worker.name}"
        return None if entry.on_demand_usd else "it is sold in Capacity Blocks only"

    @property
    def efa(self) -> bool:
        """Whether the workers have EFA interfaces, with the default applied."""
        return self.worker_type.efa_interfaces > 0 if self.network.efa is None else self.network.efa

    @property
    def ecr_image(self) -> EcrImage | None:
        """The job's container image, if it is in ECR."""
        return parse_ecr_image(self.job.container)

    @property
    def other_bucket_prefixes(self) -> list[str]:
        """S3 prefixes outside of the stack's buckets that the nodes read: data and model of the job, and wheels."""
        wheels = self.node.s3_wheels
        return [*self.job.s3_sources.values(), *([wheels] if wheels else [])]

    @property
    def node_services(self) -> tuple[str, ...]:
        """AWS services that nodes call, except S3."""
        return (*NODE_SERVICES, *(ECR_SERVICES if self.ecr_image else ()))

    @property
    def endpoint_services(self) -> tuple[str, ...]:
        """AWS services with an interface endpoint in the stack's VPC."""
        return SESSION_SERVICES if self.network.nat_gateway else self.node_services

    def in_placement_group(self, group: GroupPlan) -> bool:
        """Whether the group's nodes are in a cluster placement group, with the default applied.

        Spot Instances are not by default: a cluster placement group has less capacity than its zone. Instances in
        open reservations are not: the reservations were not created in the group.
        """
        if self.network.placement_group is not None:
            return self.network.placement_group
        return self.worker_type.cluster_placement and group.market == "on-demand" and not group.open_reservations

    @property
    def root_volume_throughput(self) -> int:
        """Throughput of each worker's root volume, MiB/s."""
        return GPU_NODE_THROUGHPUT if self.worker_type.gpu else GP3_THROUGHPUT

    @property
    def worker_image(self) -> str:
        """Name or id of the workers' AMI, with the default applied."""
        return self.image or ("deep-learning" if self.worker_type.gpu else "ubuntu-24.04")

    @property
    def worker_image_family(self) -> str:
        """Name of the workers' AMI without its release, or its id."""
        return split_image_name(self.worker_image)[0]

    @property
    def head_image(self) -> str:
        """Name of the head's AMI: that of the workers if it has no drivers."""
        return self.worker_image if self.image and self.worker_image_family in PLAIN_IMAGES else "ubuntu-24.04"

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        """The worker groups."""
        return self.capacity.groups(self.instances)

    @property
    def instances(self) -> int:
        """Instances of all worker groups: the nodes of the job and the spare nodes."""
        return self.nodes + self.spares

    @property
    def smaller_sizes(self) -> tuple[int, ...]:
        """Numbers of nodes, ascending, with which the job can continue while nodes are missing."""
        counts = range(self.min_nodes or self.nodes, self.nodes)
        return tuple(count for count in counts if not self.size_problems(count))

    def size_problems(self, nodes: int) -> list[Problem]:
        """Return why the built-in trainer cannot run on this number of nodes; none for a custom job."""
        train = self.job.train
        return [] if train is None else list(train.problems(nodes * self.processes_per_node, self.processes_per_node))

    def can_reserve(self, group: GroupPlan) -> bool:
        """Whether `capacity.reserve` applies to the group: on-demand GPU nodes without a reservation of the user."""
        is_plain = group.market == "on-demand" and group.reservation is None and not group.open_reservations
        return is_plain and self.worker_type.gpu is not None

    def reserves_capacity(self, group: GroupPlan) -> bool:
        """Whether the launch reserves the capacity of the group's nodes before it starts them."""
        return self.capacity.reserve and self.can_reserve(group)

    @property
    def reserves_any_capacity(self) -> bool:
        """Whether the launch reserves capacity, and waits for it for `capacity.wait_minutes`."""
        return any(map(self.reserves_capacity, self.groups))

    @property
    def processes_per_node(self) -> int:
        """Processes on each node, with the default applied."""
        gpu = self.worker_type.gpu
        return self.job.processes_per_node or (gpu.count if gpu else 1)

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.nodes * self.processes_per_node


def _entry(name: str) -> InstanceType:
    entry = catalog().get(name)
    assert entry is not None
    return entry
