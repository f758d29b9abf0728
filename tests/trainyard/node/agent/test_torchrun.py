"""Where a job's ranks meet."""

from pathlib import Path

import pytest

from tests.manifests import MANIFEST
from trainyard.models.run import RunRecord
from trainyard.node.agent.torchrun import interface_of, job_variables


def test_the_interface_of_a_loopback_address_is_lo() -> None:
    assert interface_of("127.77.1.9") == "lo"


def test_an_address_that_is_nowhere_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no network interface holds 203.0.113.9"):
        interface_of("203.0.113.9")


def variables(
    network: str | None, efa: int, environment: dict[str, str] | None = None, image: str | None = None
) -> dict[str, str]:
    """Of a job on GPU nodes with so many EFA devices."""
    group = MANIFEST.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": efa})
    job = MANIFEST.job.model_copy(update={"environment": environment or {}, "container": image})
    run = RunRecord(
        run="r",
        created=1.0,
        deadline=2.0,
        manifest=MANIFEST.digest(),
        nodes=1,
        processes_per_node=8,
        job=job,
        limits=MANIFEST.limits,
    )
    here = Path("/x")
    return job_variables(
        manifest=MANIFEST,
        group=group,
        run=run,
        attempt=1,
        address="127.0.0.1",
        metrics=here,
        request=here,
        cache=here,
        network=network,
    )


def test_a_job_on_efa_has_no_other_network_than_the_verified_one() -> None:
    """NCCL_NET_PLUGIN alone does not do that: where the plugin does not load, NCCL goes on with sockets."""
    found = variables("AWS Libfabric", 4)
    assert (found["NCCL_NET_PLUGIN"], found["NCCL_NET"]) == ("ofi", "AWS Libfabric")
    assert variables(None, 4)["NCCL_NET"] == "AWS Libfabric"  # to which every version of the plugin answers
    assert "NCCL_NET" not in variables("Socket", 0)


def test_a_container_has_its_own_plugin_and_the_network_that_was_verified_in_it() -> None:
    found = variables("AWS Libfabric", 4, image="nvcr.io/nvidia/pytorch:26.10-py3")
    assert "NCCL_NET_PLUGIN" not in found
    assert found["NCCL_NET"] == "AWS Libfabric"


def test_what_the_job_says_of_the_network_counts() -> None:
    assert variables("Libfabric", 4, {"NCCL_NET": "Socket"})["NCCL_NET"] == "Socket"
