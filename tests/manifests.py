"""The default manifest of tests, and measurements of a healthy node."""

from trainyard.config.shared_settings import NodeSettings
from trainyard.config.training import TrainerConfig
from trainyard.models.health_check import NodeMeasurements
from trainyard.models.manifest import Archive, Job, Limits, Manifest, Subnet, Termination, WorkerGroup
from trainyard.models.run import RunRecord

MANIFEST = Manifest(
    project="trainyard",
    stack="test",
    account="123456789012",
    region="us-east-1",
    partition="aws",
    bundle=Archive(uri="s3://staging/bundle/x.tar", sha256="0" * 64),
    data_bucket="data",
    staging_bucket="staging",
    job_role_arn="arn:aws:iam::123456789012:role/job",
    head_autoscaling_group="head-1",
    termination=Termination(schedule_group="termination-1", role_arn="arn:aws:iam::123456789012:role/termination"),
    spares=0,
    groups=(
        WorkerGroup(
            name="workers",
            autoscaling_group="workers-1",
            lifecycle_hook="leave-1",
            instance_type="c7i.xlarge",
            nodes=2,
            max_size=4,
            subnets=(Subnet(id="subnet-1", zone="us-east-1a"),),
            processes_per_node=2,
            gpus=0,
            efa_interfaces=0,
        ),
    ),
    base_usd_per_hour=0.25,
    fsx=None,
    node=NodeSettings(),
    job=Job(
        name="line",
        source=None,
        command=None,
        train=TrainerConfig(),
        data_uri="s3://data/datasets/d/",
        builtin_corpus=True,
        resume=None,
        secrets={},
        environment={},
    ),
    limits=Limits(startup_timeout_minutes=5, lease_minutes=20, time_limit_minutes=60),
)

# Health check measurements of a healthy node with eight A100 GPUs.
HEALTHY_MEASUREMENTS = NodeMeasurements(
    gpus=8,
    gpu_names=("NVIDIA A100-SXM4-40GB",),
    driver="580.126.09",
    cuda="13.2",
    nccl="2.28.3",
    torch="2.15.0",
    network="Libfabric",
    provider="efa",
    efa_devices=4,
    matmul_tflops=245.3,
    nvlink_gbs=231.2,
    network_gbs=76.4,
    seconds=20.0,
)


def record_of(manifest: Manifest, job: Job, processes_per_node: int) -> RunRecord:
    """Return the record of a run with one node."""
    return RunRecord(
        run="r",
        created=1.0,
        deadline=2.0,
        manifest_digest=manifest.digest(),
        nodes=1,
        processes_per_node=processes_per_node,
        job=job,
        limits=manifest.limits,
    )
