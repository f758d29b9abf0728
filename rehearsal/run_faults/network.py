"""Network partitions."""

from typing import ClassVar, Literal

from pydantic import Field

from rehearsal.run_faults.job import Job, RunFault
from trainyard.models.report import BackendName


class NetworkPartition(RunFault):
    """A network that drops all packets between some nodes; connections stay open, and S3 can be reached.

    `between=node-head`: between the node and the head. `between=nodes`: between all workers.
    """

    backends: ClassVar[tuple[BackendName, ...]] = ("nspawn",)
    kind: Literal["network-partition"] = "network-partition"
    between: Literal["node-head", "nodes"] = Field(description="Between which nodes packets are dropped.")
    node: int = Field(default=0, ge=0, description="Node rank of the worker, for between=node-head.")
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until packets arrive again.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Interrupt the network."""
        workers = sorted({rank.instance for rank in job.ranks.values()})
        instance, head = job.instance(self.node), job.hypervisor.running_head()
        if instance is None or head is None:
            return None
        instances = workers if self.between == "nodes" else [instance, head.id]
        job.hypervisor.isolate(instances, True)
        job.call_later(self.seconds, lambda: job.hypervisor.isolate(instances, False))
        return tuple(workers) if self.between == "nodes" else (instance,)
