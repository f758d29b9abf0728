"""Settings that both the stack file and the manifest of the nodes contain."""

from typing import Literal

from pydantic import Field, JsonValue

from trainyard.base import StrictModel
from trainyard.config.field_types import (
    HUB_SCHEME,
    ContainerImage,
    DataSource,
    JobName,
    KeyArn,
    ModelSource,
    ParameterName,
    RunId,
    VariableName,
    is_s3_uri,
)
from trainyard.config.training import TrainerConfig

FSX_MOUNT_POINT = "/fsx"  # of the file system on the nodes
Market = Literal["on-demand", "spot", "capacity-block", "interruptible-capacity-reservation"]
# Markets whose MarketType the launch template has together with a reservation; LaunchInstances documents neither.
RESERVED_MARKETS = ("capacity-block", "interruptible-capacity-reservation")
SystemRole = Literal["nvidia_driver", "cuda", "efa", "container", "nvme", "lustre"]


class NodeSettings(StrictModel):
    """How nodes get their software."""

    provisioning: Literal["configure", "skip"] = Field(
        "configure",
        description="configure: the node playbook configures the system and verifies the software of the image "
        "(driver, EFA). skip: the image is complete, nftables included; the playbook verifies the Python environment, "
        "creates the user of the job and starts services.",
    )
    skip_roles: tuple[SystemRole, ...] = Field(
        (), description="Ansible roles that the node playbook skips, because the image contains their software."
    )
    variables: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Variables of the Ansible roles. They override playbooks/roles/*/defaults/main.yml.",
    )
    use_gpus: bool = Field(
        True, description="Whether the job uses the GPUs and EFA devices of the nodes; false runs it on their CPUs."
    )
    venv: str | None = Field(
        None, description="Path of an existing Python environment for the job on the nodes; null: nodes create one."
    )
    package_index: str | None = Field(
        None,
        description="URL of a Python package index, which ends in /simple; or a folder of wheels: a URL of links, a "
        "path on the nodes, or an S3 prefix (s3://bucket/prefix/). null: pip's default. Nodes install only files with "
        "the hashes of Trainyard's locks.",
    )
    ca_certificate: str | None = Field(
        None,
        description="CA certificate that nodes trust in addition to those of their image, such as that of a proxy that "
        "intercepts TLS: a PEM file, relative to Pulumi.yaml, or its text. Nodes install it before packages. The image "
        "must have it already if the connections to S3 are intercepted.",
    )

    def runs_role(self, role: SystemRole) -> bool:
        """Return whether the node playbook runs a role where hardware and job need it."""
        return self.provisioning == "configure" and role not in self.skip_roles

    @property
    def s3_wheels(self) -> str | None:
        """The S3 URI of the wheels, where `package_index` is one: nodes need permission to read it."""
        return self.package_index if (self.package_index or "").startswith("s3://") else None


class JobSpec(StrictModel):
    """The fields of a job that the stack file and the manifest share."""

    name: JobName = Field(description="Name of the job, part of its run ids.")
    builtin_corpus: bool = Field(
        False,
        description="Fill an empty dataset with the built-in corpus: the source code of Python's standard library.",
    )
    data: DataSource = Field(
        "s3",
        description="Where the job reads its data, DATA_URI: s3: job.dataset, from the data bucket; fsx: job.dataset, "
        "from the folder into which FSx for Lustre imports it (fsx.data_repository); or a prefix of any bucket, "
        "s3://bucket/prefix/.",
    )
    model: ModelSource | None = Field(
        None,
        description="Model that the job reads, MODEL_PATH: a prefix of any bucket (s3://bucket/prefix/) or a dataset "
        "of the data bucket (dataset:NAME), which each node, or one node for all with FSx, downloads once; or a model "
        "of the Hugging Face hub (hf://ORG/NAME), which the job downloads. null: no such model.",
    )
    kms_keys: tuple[KeyArn, ...] = Field(
        (),
        description="KMS keys with which the objects of job.data and job.model in other buckets are encrypted. Nodes "
        "may decrypt with them, through S3 only.",
    )
    train: TrainerConfig | None = Field(None, description="Configuration of the built-in trainer; null: a custom job.")
    standby: bool = Field(
        True,
        description="Keep a process on each node that has imported torch, for the next attempt of the built-in "
        "trainer. It uses 0.4 GiB of memory.",
    )
    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Script in the source folder and its arguments, run by torchrun; null: the built-in trainer.",
    )
    checkpoint_on_request: bool = Field(
        False,
        description="The custom job saves a checkpoint when the file CHECKPOINT_REQUEST appears, and then removes the "
        "file: before its nodes drain, or other nodes join. The built-in trainer always does.",
    )
    environment: dict[VariableName, str] = Field(
        default_factory=dict,
        description="Environment variables of the job, not secret: names and values of secrets are refused (jobs.md).",
    )
    container: ContainerImage | None = Field(
        None,
        description="Container image of the custom job, run with the node's network, GPUs and EFA devices. Its python "
        "has torch and the packages of the job. The launch resolves its tag to a digest, which all nodes of the run "
        "pull, from ECR with their IAM role. null: the node's Python environment.",
    )
    secrets: dict[VariableName, ParameterName] = Field(
        default_factory=dict,
        description="Environment variable -> name of the SSM parameter with its value, encrypted with the AWS managed "
        "key of SSM.",
    )
    resolve_requirements: Literal["launch", "nodes"] = Field(
        "launch",
        description="Where the requirements.txt of a custom job is resolved. launch: by the launch, before a node is "
        "launched. nodes: by each node before the job starts, for a package index that only nodes reach.",
    )
    dry_run: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Script in the source folder and its arguments, which the launch runs as one process on the "
        "operator's machine before a node is launched. null: the imports of the script are tried. Trial and dry run "
        "need Linux on x86-64, the nodes' torch and Python version, and at most 200 MiB of added wheels. Otherwise the "
        "launch reports that they did not run, and continues.",
    )
    resume: RunId | None = Field(None, description="Run whose newest checkpoint a new run starts from.")

    @property
    def reads_own_bucket(self) -> bool:
        """Whether the job reads its data from a bucket that `data` names."""
        return is_s3_uri(self.data)

    @property
    def reads_hub(self) -> bool:
        """Whether the job downloads its model from the Hugging Face hub."""
        return (self.model or "").startswith(HUB_SCHEME)
