"""All that stands under `trainyard:cluster` in a stack file. The descriptions are the reference."""

from difflib import get_close_matches

from pydantic import Field, field_validator

from trainyard.aws.ecr import ECR_SERVICES, EcrImage, ecr_image
from trainyard.base import Contract
from trainyard.config.catalog import InstanceType, catalog
from trainyard.config.numbers import Whole
from trainyard.config.settings.capacity import CapacitySettings, GroupPlan, OnDemand
from trainyard.config.settings.guardrails import GuardrailSettings, IdentitySettings
from trainyard.config.settings.job import JobSettings, LaunchSettings
from trainyard.config.settings.names import ImageName, TagKey, TagValue
from trainyard.config.settings.network import NODE_SERVICES, SESSION_SERVICES, NetworkSettings
from trainyard.config.settings.storage import FsxSettings, StorageSettings
from trainyard.models.manifest import NodeSystem

MOST_NODES = 1024


class StackSettings(Contract):
    """One training cluster and its job."""

    instance_type: str = Field(description="EC2 instance type of the workers, one of the hardware catalog.")
    nodes: Whole = Field(gt=0, le=MOST_NODES, description="Worker nodes: all of them start, or none.")
    capacity: CapacitySettings = Field(
        default_factory=lambda: CapacitySettings(on_demand=OnDemand()),
        description="Where the workers come from, one key; none: on-demand.",
    )
    image: ImageName | None = Field(
        None,
        description="Image of the workers: deep-learning (AWS's, with driver and EFA), ubuntu-24.04, debian-12, or an "
        "id; none: deep-learning on GPU types, ubuntu-24.04 on others. Looked up once: a later one changes nothing.",
    )
    head_instance_type: str = Field("t3.large", description="EC2 instance type of the head (store and controller).")
    root_volume_gib: Whole = Field(100, ge=30, le=16384, description="Root volume of every node, GiB, gp3.")
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="The network.")
    storage: StorageSettings = Field(default_factory=StorageSettings, description="The data bucket and its key.")
    fsx: FsxSettings | None = Field(None, description="Shared FSx for Lustre file system; none: S3 only.")
    identity: IdentitySettings = Field(default_factory=IdentitySettings, description="Roles of head and workers.")
    guardrails: GuardrailSettings = Field(default_factory=GuardrailSettings, description="Bounds of cost and time.")
    node: NodeSystem = Field(default_factory=NodeSystem, description="How nodes come to their software.")
    job: JobSettings = Field(description="The job.")
    launch: LaunchSettings = Field(default_factory=LaunchSettings, description="Deadlines of bringing it up.")
    tags: dict[TagKey, TagValue] = Field(
        default_factory=dict, description="Tags on everything that can bear them, for cost allocation."
    )

    @field_validator("instance_type", "head_instance_type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if catalog().get(value) is None:
            known = [entry.name for entry in catalog().instance_types]
            near = ", ".join(get_close_matches(value, known, n=4, cutoff=0.4) or known[:4])
            raise ValueError(f"not in trainyard/config/catalog.json, which has {near} and others")
        return value

    @property
    def worker_type(self) -> InstanceType:
        return _entry(self.instance_type)

    @property
    def head_type(self) -> InstanceType:
        return _entry(self.head_instance_type)

    @property
    def instance_types(self) -> list[str]:
        """Every type that the stack has instances of."""
        return sorted({self.instance_type, self.head_instance_type})

    @property
    def efa(self) -> bool:
        return self.worker_type.efa_interfaces > 0 if self.network.efa is None else self.network.efa

    @property
    def ecr_image(self) -> EcrImage | None:
        """The job's image, where it lies in ECR."""
        return ecr_image(self.job.container)

    @property
    def node_services(self) -> tuple[str, ...]:
        """Services of AWS that nodes call, beside S3."""
        return (*NODE_SERVICES, *(ECR_SERVICES if self.ecr_image else ()))

    @property
    def endpoint_services(self) -> tuple[str, ...]:
        """Those that have an interface endpoint in a network of the stack's own."""
        return SESSION_SERVICES if self.network.nat else self.node_services

    @property
    def placement_group(self) -> bool:
        wish = self.network.placement_group
        usual = self.worker_type.cluster_placement and self.capacity.capacity_block is None
        return usual if wish is None else wish

    @property
    def worker_image(self) -> str:
        return self.image or ("deep-learning" if self.worker_type.gpu else "ubuntu-24.04")

    @property
    def head_image(self) -> str:
        return "debian-12" if self.image == "debian-12" else "ubuntu-24.04"

    @property
    def groups(self) -> tuple[GroupPlan, ...]:
        return self.capacity.groups(self.nodes)

    @property
    def processes_per_node(self) -> int:
        gpu = self.worker_type.gpu
        return self.job.processes_per_node or (gpu.count if gpu else 1)

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node


def _entry(name: str) -> InstanceType:
    found = catalog().get(name)
    assert found is not None
    return found
