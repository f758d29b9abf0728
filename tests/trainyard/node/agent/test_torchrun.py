"""Environment variables of a job, and its network interface."""

from pathlib import Path

import pytest

from tests.manifests import MANIFEST, record_of
from trainyard.models.manifest import Fsx, Manifest
from trainyard.models.run import Master
from trainyard.node.agent.attempt import model_location
from trainyard.node.agent.torchrun import find_interface, job_variables, torchrun_command


def test_interface_of_a_loopback_address_is_lo() -> None:
    assert find_interface("127.77.1.9") == "lo"


def test_address_without_interface_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no network interface is in the network of 203.0.113.9"):
        find_interface("203.0.113.9")


def create_variables(
    network: str | None,
    efa: int,
    environment: dict[str, str] | None = None,
    image: str | None = None,
    manifest: Manifest = MANIFEST,
    model: str | None = None,
) -> dict[str, str]:
    """Variables of a job on GPU nodes with `efa` EFA devices."""
    group = manifest.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": efa})
    job = manifest.job.model_copy(update={"environment": environment or {}, "container": image})
    run = record_of(manifest, job, 8)
    folder = Path("/x")
    return job_variables(
        manifest=manifest,
        group=group,
        run=run,
        attempt=1,
        instance="i-1",
        address="127.0.0.1",
        metrics=folder,
        request=folder,
        cache=folder,
        model=model,
        network=network,
    )


def test_job_on_efa_uses_only_the_network_of_the_health_check() -> None:
    """NCCL_NET_PLUGIN is not sufficient: if the plugin does not load, NCCL falls back to sockets."""
    result = create_variables("AWS Libfabric", 4)
    assert (result["NCCL_NET_PLUGIN"], result["NCCL_NET"]) == ("ofi", "AWS Libfabric")
    assert create_variables(None, 4)["NCCL_NET"] == "AWS Libfabric"  # every version of the plugin accepts this name
    assert "NCCL_NET" not in create_variables("Socket", 0)


def test_container_keeps_the_plugin_of_the_image() -> None:
    result = create_variables("AWS Libfabric", 4, image="nvcr.io/nvidia/pytorch:26.10-py3")
    assert "NCCL_NET_PLUGIN" not in result
    assert result["NCCL_NET"] == "AWS Libfabric"


def test_environment_of_the_job_overrides_the_network() -> None:
    assert create_variables("Libfabric", 4, {"NCCL_NET": "Socket"})["NCCL_NET"] == "Socket"


def test_errors_of_nccl_are_logged_and_compiled_kernels_are_kept_across_attempts() -> None:
    result = create_variables("AWS Libfabric", 4)
    assert (result["NCCL_DEBUG"], result["TORCHINDUCTOR_CACHE_DIR"]) == ("WARN", "/x/inductor")


@pytest.mark.parametrize("binds", [False, True])
def test_processes_are_bound_to_the_numa_node_of_their_gpu(binds: bool) -> None:
    command = torchrun_command(
        python=Path("python"),
        nodes=("i-1",),
        instance="i-1",
        master=Master(address="127.0.0.1", port=20000),
        rendezvous="r-1",
        processes=8,
        job=["train.py"],
        logs=Path("/logs"),
        binds_numa=binds,
    )
    assert ("--numa-binding=node" in command) == binds


def test_job_reads_its_dataset_from_the_folder_that_fsx_imports() -> None:
    fsx = Fsx(dns_name="fs-1.fsx.us-east-1.amazonaws.com", mount_name="abc", mount_point="/fsx")
    manifest = MANIFEST.model_copy(update={"fsx": fsx, "job": MANIFEST.job.model_copy(update={"data": "fsx"})})
    assert create_variables(None, 0, manifest=manifest)["DATA_URI"] == "/fsx/datasets/d/"
    assert create_variables(None, 0, manifest=MANIFEST.model_copy(update={"fsx": fsx}))["DATA_URI"] == (
        "s3://data/datasets/d/"
    )


@pytest.mark.parametrize(
    ("uri", "source", "expected"),
    [
        (None, None, {}),
        ("hf://org/m", "hf://org/m", {"MODEL_URI": "hf://org/m", "MODEL_PATH": "org/m", "HF_HOME": "/x/huggingface"}),
        ("s3://m/llama/", "s3://m/llama/", {"MODEL_URI": "s3://m/llama/", "MODEL_PATH": "models/llama-"}),
    ],
)
def test_job_has_the_location_of_its_model(uri: str | None, source: str | None, expected: dict[str, str]) -> None:
    job = MANIFEST.job.model_copy(update={"model": source, "model_uri": uri})
    manifest = MANIFEST.model_copy(update={"job": job})
    result = create_variables(None, 0, manifest=manifest, model=model_location(manifest, job))
    names = {"MODEL_URI", "MODEL_PATH", "HF_HOME"}
    assert names & result.keys() == expected.keys()
    assert all(value in result[name] for name, value in expected.items())


def test_job_without_data_has_no_uri() -> None:
    manifest = MANIFEST.model_copy(update={"job": MANIFEST.job.model_copy(update={"data_uri": None})})
    assert "DATA_URI" not in create_variables(None, 0, manifest=manifest)
