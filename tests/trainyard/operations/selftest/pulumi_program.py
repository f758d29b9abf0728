"""A program in place of the Pulumi CLI, for tests of the selftest: creates and deletes a small stack with boto3.

`python -m tests.trainyard.operations.selftest.pulumi_program FOLDER COMMAND ...`: writes each command to
FOLDER/calls.jsonl. FOLDER/changes.json changes the n-th call of a command: `{"up 2": {"exit": 1, "output": "x"}}`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

DATASET = "datasets/python-stdlib/index.json"
NO_EFFECT = ("version", "cancel", "preview")


def main(folder: Path, argv: list[str]) -> int:
    """Execute one command; return its exit status."""
    command, calls, changes = argv[0], folder / "calls.jsonl", folder / "changes.json"
    environment = {name: value for name, value in os.environ.items() if name.startswith("PULUMI_")}
    with calls.open("a") as file:
        file.write(json.dumps({"argv": argv, "environment": environment, "cwd": str(Path.cwd())}) + "\n")
    number = sum(json.loads(line)["argv"][0] == command for line in calls.read_text().splitlines())
    change = json.loads(changes.read_text()).get(f"{command} {number}", {}) if changes.exists() else {}
    print(change.get("output", ""), flush=True)  # noqa: T201
    time.sleep(change.get("sleep", 0))
    if "exit" in change or command in NO_EFFECT or {"init", "--show-name", "--expect-no-changes"} & {*argv}:
        return int(change.get("exit", 0))
    cwd = Path(argv[argv.index("--cwd") + 1]) if "--cwd" in argv else Path.cwd()
    change_stack(command, cwd, argv[argv.index("--stack") + 1], change)
    return 0


def change_stack(command: str, cwd: Path, name: str, change: dict[str, Any]) -> None:
    """Create or delete the stack, or print its outputs."""
    import yaml  # these imports take a second, which other commands do not need

    from trainyard.aws.s3 import Bucket

    config = yaml.safe_load((cwd / f"Pulumi.{name}.yaml").read_text())["config"]
    staging = Bucket(f"{name}-staging", config["aws:region"])
    if command == "up":
        up(name, config["aws:region"], config["trainyard:cluster"], change)
    elif command == "destroy":
        destroy(staging, name, config["aws:region"])
    else:
        outputs = {"manifest": f"s3://{staging.name}/manifest.json", "launch": staging.read("outputs").decode()}
        print(json.dumps(outputs))  # noqa: T201


def up(name: str, region: str, settings: dict[str, Any], change: dict[str, Any]) -> None:
    """Create a cluster, a node in GPU stacks, and the objects of a run that has succeeded or ends later."""
    from tests import clusters
    from trainyard.models.layout import CURRENT_RUN, RunLayout
    from trainyard.models.run import LaunchResult, Outcome

    cluster = clusters.create_cluster(region, name)
    if cluster.data.find(DATASET) is None or change.get("rewrite"):
        cluster.data.write(DATASET, b"{}")
    nodes = [launch_gpu_node(cluster, settings, change)] if "c7i" not in settings["instance_type"] else []
    record = cluster.create_run_record()
    outcome = Outcome(state=change.get("outcome", "succeeded"), reason="r", attempts=1, ended_at=time.time())
    result = LaunchResult(run=record.run, nodes=tuple(nodes), data_uri="", run_uri="", phases={"startup": 3.5})
    cluster.data.write(RunLayout(record.run).record, record.model_dump_json().encode())
    cluster.data.write(RunLayout(record.run).outcome, outcome.model_dump_json().encode())
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    cluster.staging.write("outputs", result.model_dump_json().encode())


def launch_gpu_node(cluster: Any, settings: dict[str, Any], change: dict[str, Any]) -> str:
    """Launch a Spot Instance, or an instance in a reservation; with the change `outside` it is not in it."""
    from tests import clusters
    from trainyard.aws import tags
    from trainyard.aws.clients import client
    from trainyard.aws.reservations import create_reservation

    region, market = cluster.manifest.region, {tags.STACK: cluster.stack_tag, tags.ROLE: "workers"}
    options: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}
    if "spot" not in settings["capacity"]:
        reservation = create_reservation(
            region,
            instance_type=settings["instance_type"],
            zone="us-east-1a",
            instances=1,
            end=time.time() + 3600,
            placement_group_arn=None,
            tags=market,
            token=str(time.time()),
        )
        target = {"CapacityReservationTarget": {"CapacityReservationId": reservation.id}}
        options = {} if change.get("outside") else {"CapacityReservationSpecification": target}
    tag_list = [{"Key": key, "Value": value} for key, value in market.items()]
    response = client("ec2", region).run_instances(
        ImageId=clusters.ubuntu_image_id(region),
        InstanceType=settings["instance_type"],
        MinCount=1,
        MaxCount=1,
        Placement={"AvailabilityZone": "us-east-1a"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": tag_list}],
        **options,
    )
    return str(response["Instances"][0]["InstanceId"])


def destroy(staging: Any, name: str, region: str) -> None:
    """Delete everything except the data bucket."""
    import boto3

    from trainyard.aws import ec2, tags
    from trainyard.aws.reservations import cancel_reservation, find_reservations

    for reservation in find_reservations(region, {tags.STACK: f"trainyard/{name}"}):
        cancel_reservation(region, reservation.id)
    instances = [each["InstanceId"] for each in ec2.find_instances(region, {tags.STACK: f"trainyard/{name}"})]
    ec2.terminate_instances(region, instances)
    if staging.exists():
        autoscaling = boto3.client("autoscaling", region_name=region)
        autoscaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        boto3.client("ec2", region_name=region).delete_launch_template(LaunchTemplateName=name)
        bucket = boto3.resource("s3", region_name=region).Bucket(staging.name)
        bucket.objects.delete()
        bucket.delete()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
