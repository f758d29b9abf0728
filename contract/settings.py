"""A stack's settings: all that stands under `trainyard:cluster` in a stack file. The descriptions are the reference."""

from ipaddress import IPv4Network
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from contract.base import Contract
from contract.catalog import InstanceType, catalog
from contract.manifest import NodeSystem
from contract.training import TrainerConfig
from contract.wording import spelled

MOST_NODES = 1024


JobName = Annotated[
    str,
    AfterValidator(
        spelled("[a-z][a-z0-9-]{0,30}", "a lower-case letter, then up to 30 lower-case letters, digits and hyphens")
    ),
]
DatasetName = Annotated[
    str,
    AfterValidator(
        spelled("[a-z0-9][a-z0-9._-]{0,62}", "up to 63 lower-case letters, digits, dots, hyphens and underscores")
    ),
]
RunId = Annotated[
    str, AfterValidator(spelled("[a-z0-9][a-z0-9-]{0,62}", "the id of a run, such as 20260131-183012-base-4f1a"))
]
VariableName = Annotated[
    str,
    AfterValidator(
        spelled("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable: letters, digits and underscores")
    ),
]
ParameterName = Annotated[
    str,
    AfterValidator(spelled("[A-Za-z0-9_./-]{1,1011}", "the name of an SSM parameter: letters, digits and . - _ /")),
]


class NetworkSettings(Contract):
    """The cluster's own VPC."""

    cidr: IPv4Network = Field(IPv4Network("10.42.0.0/16"), description="IPv4 range of the VPC, /16 to /24.")
    zone: str | None = Field(None, description="Availability Zone; none: the region's first that is available.")
    efa: bool | None = Field(None, description="Elastic Fabric Adapter; none: where the instance type bears it.")
    placement_group: bool | None = Field(
        None, description="Cluster placement group; none: where the instance type can be in one."
    )

    @field_validator("cidr", mode="before")
    @classmethod
    def _written_out(cls, value: object) -> object:
        if not isinstance(value, str):  # a number is an address too
            raise PydanticCustomError("ip_v4_network", "not a range")
        return value


class FsxSettings(Contract):
    """FSx for Lustre, PERSISTENT_2 on SSD."""

    capacity_gib: int = Field(1200, description="Storage capacity: 1200, or a multiple of 2400 GiB.")
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = Field(
        250, description="Throughput per TiB of storage, MB/s."
    )

    @field_validator("capacity_gib")
    @classmethod
    def _steps(cls, value: int) -> int:
        if value != 1200 and (value < 2400 or value % 2400):
            raise ValueError("FSx for Lustre SSD storage comes in 1200 GiB or multiples of 2400 GiB")
        return value


class JobSettings(Contract):
    """The job: the built-in trainer (`train`), or the user's own (`source` and `command`)."""

    name: JobName = Field(description="Name of the job, part of its run ids.")
    dataset: DatasetName = Field(description="Dataset under datasets/ in the data bucket: DATA_URI.")
    builtin_corpus: bool = Field(
        False,
        description="Fill an empty dataset with the built-in corpus: the sources of Python's standard library.",
    )
    processes_per_node: int | None = Field(
        None, gt=0, description="Worker processes on each node; none: one a GPU, or one on CPU nodes."
    )
    train: TrainerConfig | None = Field(None, description="Configuration of the built-in trainer.")
    source: str | None = Field(
        None, description="Folder of the user's job, relative to Pulumi.yaml; a .trainyardignore in it is honoured."
    )
    command: tuple[str, ...] | None = Field(
        None, min_length=1, description="Script in the source folder and its arguments, run by torchrun."
    )
    checkpoint_on_request: bool = Field(
        False,
        description="The user's job saves a checkpoint when the file CHECKPOINT_REQUEST appears, and then removes it: "
        "before its nodes leave, or others join. The built-in trainer always does.",
    )
    environment: dict[VariableName, str] = Field(
        default_factory=dict, description="Plain environment variables of the job."
    )
    secrets: dict[VariableName, ParameterName] = Field(
        default_factory=dict, description="Environment variable -> name of the SSM parameter with its value."
    )
    resume: RunId | None = Field(None, description="Run whose newest checkpoint a new run starts from.")
    time_limit_minutes: float = Field(
        1440.0, gt=0, description="Minutes after the launch at which the workers end in any case."
    )

    @field_validator("source")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is not None and (PurePosixPath(value).is_absolute() or ".." in PurePosixPath(value).parts):
            raise ValueError("must be a path below the folder of Pulumi.yaml")
        return value


class LaunchSettings(Contract):
    """Deadlines of bringing the cluster up."""

    bring_up_minutes: float = Field(45.0, gt=0, description="Minutes from the launch until the job must have started.")
    lease_minutes: float = Field(20.0, ge=5, description="Minutes after which AWS ends the workers unless renewed.")


class StackSettings(Contract):
    """One training cluster and its job."""

    instance_type: str = Field(description="EC2 instance type of the workers, one of the hardware catalog.")
    nodes: int = Field(gt=0, le=MOST_NODES, description="Worker nodes: all of them start, or none.")
    head_instance_type: str = Field("t3.large", description="EC2 instance type of the head (store and controller).")
    root_volume_gib: int = Field(100, ge=30, description="Root volume of every node, GiB, gp3.")
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="The VPC.")
    fsx: FsxSettings | None = Field(None, description="Shared FSx for Lustre file system; none: S3 only.")
    node: NodeSystem = Field(default_factory=NodeSystem, description="How nodes come to their software.")
    job: JobSettings = Field(description="The job.")
    launch: LaunchSettings = Field(default_factory=LaunchSettings, description="Deadlines of bringing it up.")
    tags: dict[str, str] = Field(default_factory=dict, description="Tags on everything that can bear them.")

    @field_validator("instance_type", "head_instance_type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        if catalog().get(value) is None:
            known = ", ".join(entry.name for entry in catalog().instance_types)
            raise ValueError(f"not in the hardware catalog; it has {known}")
        return value

    @property
    def worker_type(self) -> InstanceType:
        found = catalog().get(self.instance_type)
        assert found is not None
        return found

    @property
    def efa(self) -> bool:
        return self.worker_type.efa_interfaces > 0 if self.network.efa is None else self.network.efa

    @property
    def placement_group(self) -> bool:
        wish = self.network.placement_group
        return self.worker_type.cluster_placement if wish is None else wish

    @property
    def processes_per_node(self) -> int:
        gpu = self.worker_type.gpu
        return self.job.processes_per_node or (gpu.count if gpu else 1)

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node
