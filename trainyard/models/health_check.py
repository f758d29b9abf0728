"""Measurements and result of a health check of the nodes: `health_check.json` of a run."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel

NodeFaultKind = Literal[
    "gpus", "network", "matmul", "nvlink", "versions", "crashed", "hung", "no_report", "peers", "bandwidth", "fabric"
]

HealthCheckDecision = Literal["passed", "repeat", "replace", "failed"]


class NodeFault(StrictModel):
    """A fault found by a health check. Two faults of one kind count as equal, on two nodes or in two health checks."""

    kind: NodeFaultKind = Field(description="Kind of the fault.")
    text: str = Field(description="Actual and expected value.")


class NodeMeasurements(StrictModel):
    """Values measured on a node in a health check; none for a value that was not measured."""

    gpus: int = Field(0, ge=0, description="Number of GPUs that both the driver and torch list.")
    gpu_names: tuple[str, ...] = Field((), description="Distinct names of the GPUs.")
    driver: str | None = Field(None, description="Version of the NVIDIA driver.")
    cuda: str | None = Field(None, description="CUDA version for which torch is built.")
    nccl: str | None = Field(None, description="Version of NCCL.")
    torch: str | None = Field(None, description="Version of torch.")
    network: str | None = Field(
        None, description="Network between the processes of all nodes: the name that NCCL logs, or gloo."
    )
    provider: str | None = Field(None, description="Provider of libfabric that the OFI plugin selected.")
    efa_devices: int | None = Field(None, ge=0, description="Number of EFA devices that the OFI plugin uses.")
    matmul_tflops: float | None = Field(
        None, gt=0, description="Matrix multiplication throughput of the slowest GPU, TFLOP/s."
    )
    nvlink_gbs: float | None = Field(None, gt=0, description="Bus bandwidth of an all-reduce within the node, GB/s.")
    network_gbs: float | None = Field(None, gt=0, description="Bus bandwidth of an all-reduce over all nodes, GB/s.")
    seconds: float | None = Field(
        None, ge=0, description="Seconds from the time the agent read the request to its report."
    )

    def describe(self, full: bool = False) -> str:
        """Format the values for one line of a table. `full`: include the versions of CUDA, NCCL and torch."""
        gpus = f"{self.gpus} x {', '.join(self.gpu_names)}" if self.gpus else ""
        network = self.network and f"{self.network}{f' ({self.provider})' if self.provider else ''}"
        efa = None if self.efa_devices is None else f"{self.efa_devices} EFA devices"
        versions = [("driver", self.driver), ("CUDA", self.cuda), ("NCCL", self.nccl), ("torch", self.torch)]
        rates = [
            ("matmul", self.matmul_tflops, "TFLOP/s"),
            ("all-reduce within the node", self.nvlink_gbs, "GB/s"),
            ("all-reduce over all nodes", self.network_gbs, "GB/s"),
        ]
        parts = [
            gpus,
            *(f"{name} {version}" for name, version in versions if version and (full or name == "driver")),
            network,
            efa,
            *(f"{name} {_format_rate(rate)} {unit}" for name, rate, unit in rates if rate is not None),
        ]
        return ", ".join(part for part in parts if part)


def _format_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


class NodeResult(StrictModel):
    """Result of one node in one health check."""

    node: str = Field(description="EC2 instance id.")
    group: str | None = Field(None, description="Worker group of the node; null if the node did not report.")
    measurements: NodeMeasurements | None = Field(
        None, description="Values that the node measured; null if the node did not report."
    )
    faults: tuple[NodeFault, ...] = Field((), description="Faults of this node; empty if it is healthy.")
    missing_peers: tuple[str, ...] = Field((), description="Nodes that did not arrive while this node waited.")
    incomplete_stage: str | None = Field(None, description="Stage over all nodes that no node completed.")

    def describe(self, full: bool = False) -> str:
        """Format the result for one line of a table. `full`: include the versions of CUDA, NCCL and torch."""
        if self.faults:
            return f"failed, {'; '.join(fault.text for fault in self.faults)}"
        if self.missing_peers:
            return f"waited for nodes that did not arrive: {', '.join(self.missing_peers)}"
        if self.incomplete_stage:
            return f"did not complete: {self.incomplete_stage}"
        if self.measurements is None:
            return "no result: the health check was stopped when another node failed"
        return self.measurements.describe(full)


class HealthCheckResult(StrictModel):
    """`health_check.json`: result of each node in a health check, and the decision of the controller."""

    number: int = Field(gt=0, description="Number of the health check in its run.")
    ended_at: float = Field(description="Unix time, seconds.")
    seconds: float = Field(ge=0, description="Seconds from the request to the decision.")
    nodes: tuple[NodeResult, ...] = Field(min_length=1, description="Results of the nodes.")
    faults: tuple[NodeFault, ...] = Field((), description="Faults between nodes, which no single node causes.")
    notes: tuple[str, ...] = Field((), description="Warnings that do not stop the run.")
    decision: HealthCheckDecision = Field(
        description="passed: the job may start. repeat: the health check is repeated. replace: nodes were marked "
        "unhealthy and their group replaces them. failed: the run ends."
    )
    reason: str = Field(description="Reason of the decision, in one sentence.")
    during_attempt: bool = Field(False, description="Whether the job ran on other nodes meanwhile.")
    unhealthy_nodes: tuple[str, ...] = Field(
        (), description="Nodes that failed twice and were marked unhealthy in their group."
    )

    def find_node(self, instance_id: str) -> NodeResult | None:
        """Result of one node; None if it was not part of this health check."""
        return next((result for result in self.nodes if result.node == instance_id), None)

    @property
    def faulty_nodes(self) -> dict[str, tuple[NodeFault, ...]]:
        """Instance id -> faults, of each node that has any."""
        return {result.node: result.faults for result in self.nodes if result.faults}
