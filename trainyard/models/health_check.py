"""What a verification of the nodes before a job measures and concludes; `verification.json` of a run."""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract

FaultKind = Literal[
    "gpus", "network", "matmul", "nvlink", "versions", "crashed", "hung", "silent", "bandwidth", "fabric"
]

Verdict = Literal["passed", "repeat", "replace", "failed"]


class Fault(Contract):
    """One thing that is not as it should be. The kind tells whether two nodes, or two checks, failed the same way."""

    kind: FaultKind = Field(description="What kind of thing.")
    text: str = Field(description="What was found, and what was wanted.")


class Measured(Contract):
    """What one node found of itself; none for what it did not come to, or has not."""

    gpus: int = Field(0, ge=0, description="GPUs that both the driver and torch see.")
    gpu_names: tuple[str, ...] = Field((), description="Their different names.")
    driver: str | None = Field(None, description="Version of the NVIDIA driver.")
    cuda: str | None = Field(None, description="CUDA that torch is built for.")
    nccl: str | None = Field(None, description="Version of NCCL.")
    torch: str | None = Field(None, description="Version of torch.")
    network: str | None = Field(
        None, description="Network that the processes of all nodes used: as NCCL names it, or gloo."
    )
    provider: str | None = Field(None, description="Provider of libfabric that the OFI plugin chose.")
    efa_devices: int | None = Field(None, ge=0, description="EFA devices that the OFI plugin uses.")
    matmul_tflops: float | None = Field(None, gt=0, description="TFLOP/s of a matrix product, of the slowest GPU.")
    nvlink_gbs: float | None = Field(None, gt=0, description="Bus bandwidth of an all-reduce within the node, GB/s.")
    network_gbs: float | None = Field(None, gt=0, description="Bus bandwidth of one over all nodes, GB/s.")
    seconds: float | None = Field(None, ge=0, description="Seconds from the node's look at the order to its report.")

    def in_words(self, full: bool = False) -> str:
        """For one line of a table; with `full` the versions too."""
        gpus = f"{self.gpus} x {', '.join(self.gpu_names)}" if self.gpus else ""
        network = self.network and f"{self.network}{f' ({self.provider})' if self.provider else ''}"
        efa = None if self.efa_devices is None else f"{self.efa_devices} EFA devices"
        versions = [("driver", self.driver), ("CUDA", self.cuda), ("NCCL", self.nccl), ("torch", self.torch)]
        rates = [
            ("matmul", self.matmul_tflops, "TFLOP/s"),
            ("all-reduce in the node", self.nvlink_gbs, "GB/s"),
            ("over all nodes", self.network_gbs, "GB/s"),
        ]
        parts = [
            gpus,
            *(f"{name} {version}" for name, version in versions if version and (full or name == "driver")),
            network,
            efa,
            *(f"{name} {_short(rate)} {unit}" for name, rate, unit in rates if rate is not None),
        ]
        return ", ".join(part for part in parts if part)


def _short(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


class CheckedNode(Contract):
    """One node in one check."""

    node: str = Field(description="EC2 instance id.")
    group: str | None = Field(None, description="Its worker group; none where it told nothing.")
    measured: Measured | None = Field(None, description="What it measured; none where it told nothing.")
    faults: tuple[Fault, ...] = Field((), description="Faults of its own; none where it is healthy.")
    absent: tuple[str, ...] = Field((), description="Peers that it waited for in vain.")
    stuck: str | None = Field(None, description="What it began with all nodes and none of them ended.")

    def in_words(self, full: bool = False) -> str:
        """For one line of a table; with `full` the versions too."""
        if self.faults:
            return f"failed, {'; '.join(fault.text for fault in self.faults)}"
        if self.absent:
            return f"waited in vain for {', '.join(self.absent)}"
        if self.stuck:
            return f"did not end: {self.stuck}"
        return self.measured.in_words(full) if self.measured else "not known: the check was cut when another failed"


class Verification(Contract):
    """`verification.json`: a check, what each node measured, and what follows from it."""

    number: int = Field(gt=0, description="Number of the check in its run.")
    ended: float = Field(description="Unix time, seconds.")
    seconds: float = Field(ge=0, description="Seconds from the order to the verdict.")
    nodes: tuple[CheckedNode, ...] = Field(min_length=1, description="The nodes that were checked.")
    faults: tuple[Fault, ...] = Field((), description="Faults of the whole, of which no node is the culprit.")
    notes: tuple[str, ...] = Field((), description="What is worth a word and ends nothing.")
    verdict: Verdict = Field(
        description="passed: the job may start. repeat: checked once more. replace: nodes were marked unhealthy, "
        "others come. failed: the run is over."
    )
    reason: str = Field(description="Why, in one sentence.")
    unhealthy: tuple[str, ...] = Field((), description="Nodes that failed twice and were marked so in their group.")

    def node(self, name: str) -> CheckedNode | None:
        return next((one for one in self.nodes if one.node == name), None)

    @property
    def blamed(self) -> dict[str, tuple[Fault, ...]]:
        """Node -> faults of its own, where it has any."""
        return {one.node: one.faults for one in self.nodes if one.faults}
