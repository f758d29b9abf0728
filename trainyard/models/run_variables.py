"""Environment variables of a job, without those of its network."""

from pathlib import Path

from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Job, Manifest


def run_variables(
    *,
    manifest: Manifest,
    job: Job,
    layout: RunLayout,
    attempt: int,
    node: str,
    metrics: Path,
    request: Path,
    cache: Path,
    model: str | None = None,
) -> dict[str, str]:
    """Environment variables of a job, on its nodes and in its dry run on the operator's machine.

    `layout`: keys of the run. `node`: EC2 instance id of the node. `model`: folder of the job's model, or its name in
    the Hugging Face hub.
    """
    bucket = f"s3://{manifest.data_bucket}"
    variables = {
        "CHECKPOINT_URI": f"{bucket}/{layout.checkpoints}",
        "RESULTS_URI": f"{bucket}/{layout.results}",
        "TRAINYARD_RUN": layout.run,
        "TRAINYARD_ATTEMPT": str(attempt),
        "TRAINYARD_NODE": node,
        "METRICS_DIR": str(metrics),
        "CHECKPOINT_REQUEST": str(request),
        "TRAINYARD_CACHE": str(cache),
        # Below it is also Triton's cache. By default both are in a temporary folder.
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "AWS_REGION": manifest.region,
        "AWS_DEFAULT_REGION": manifest.region,
    }
    if job.data_uri is not None:
        variables["DATA_URI"] = manifest.local_data_path(job) if job.data == "fsx" else job.data_uri
    if job.model_uri is not None and model is not None:
        variables |= {"MODEL_URI": job.model_uri, "MODEL_PATH": model}
    if job.reads_hub:
        variables["HF_HOME"] = str(cache / "huggingface")
    if manifest.fsx:
        variables["FSX_PATH"] = manifest.fsx.mount_point
    if job.resume:
        variables["RESUME_URI"] = f"{bucket}/{RunLayout(job.resume).checkpoints}"
    return variables
