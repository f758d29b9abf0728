"""What `trainyard selftest` reads from the account: the nodes and reservations of a launch, and what remains."""

import getpass
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.clients import client
from trainyard.aws.reservations import describe_reservation
from trainyard.config.catalog import catalog
from trainyard.config.prices import prices
from trainyard.models.events import AgentEvent, PlaybookEvent
from trainyard.models.layout import RunLayout
from trainyard.models.run import LaunchResult
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.destroy import ExistingResource
from trainyard.operations.selftest_report import LaunchFacts, Leftover, NodeFacts, ReservationFacts
from trainyard.operations.stack_file import PROJECT_ROOT

_PACKAGES = ("pulumi", "pulumi-aws", "pulumi-command", "boto3")
_SECRET_NAME = re.compile("SECRET|TOKEN|PASSWORD|PASSPHRASE|ACCESS_KEY")
_MIN_SECRET_LENGTH = 8
_COMMON_LOGINS = ("root", "ubuntu", "admin", "user")  # words of other texts
_END_COMMANDS = {
    "ec2:instance": "aws ec2 terminate-instances --region {region} --instance-ids {id}",
    "ec2:capacity-reservation": "aws ec2 cancel-capacity-reservation --region {region} --capacity-reservation-id {id}",
    "ec2:natgateway": "aws ec2 delete-nat-gateway --region {region} --nat-gateway-id {id}",
    "ec2:elastic-ip": "aws ec2 release-address --region {region} --allocation-id {id}",
    "ec2:volume": "aws ec2 delete-volume --region {region} --volume-id {id}",
    "ec2:vpc-endpoint": "aws ec2 delete-vpc-endpoints --region {region} --vpc-endpoint-ids {id}",
    "autoscaling:autoScalingGroup": "aws autoscaling delete-auto-scaling-group --region {region} --force-delete "
    "--auto-scaling-group-name {id}",
    "kms:key": "aws kms schedule-key-deletion --region {region} --pending-window-in-days 7 --key-id {id}",
    # A bucket with versions: `aws s3 rb --force` does not delete earlier versions.
    "s3": "python3 -c \"import boto3; b = boto3.resource('s3').Bucket('{id}'); b.object_versions.delete(); "
    'b.delete()"',
}


def private_texts(identity: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the texts of this machine and account that a report does not contain -> their replacements.

    `identity`: the answer of sts:GetCallerIdentity.
    """
    credentials = boto3.Session().get_credentials()
    frozen = list(credentials.get_frozen_credentials()) if credentials else []
    secret_values = [*frozen, *(value for name, value in os.environ.items() if _SECRET_NAME.search(name))]
    arn, login = identity["Arn"], getpass.getuser()
    return [
        (identity["Account"], "<account>"),
        (arn, "<caller>"),
        *((name, "<name>") for name in arn.partition("/")[2].split("/")),
        *((value, "<secret>") for value in secret_values if value and len(value) >= _MIN_SECRET_LENGTH),
        (str(Path.home()), "~"),
        *([] if login in _COMMON_LOGINS else [(login, "<user>")]),
        (platform.node(), "<host>"),
    ]


def read_versions(pulumi_version: str) -> dict[str, str]:
    """Return the versions of the CLI, the packages, Python, the operating system and the project."""
    versions = {
        "Pulumi CLI": pulumi_version.strip(),
        "Python": platform.python_version(),
        "system": platform.platform(),
    }
    for name in (*_PACKAGES, "trainyard"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {**versions, "commit": _commit()}


def _commit() -> str:
    argv = ["git", "-C", str(PROJECT_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def read_launch(cluster: Cluster, output: str) -> LaunchFacts:
    """Return the facts of a launch. `output`: the stack output `launch`, whose last line is JSON."""
    result = LaunchResult.model_validate_json(output.splitlines()[-1])
    record = cluster.record(result.run)
    reservations = read_reservations(cluster.region, record.reservations if record else ())
    return LaunchFacts(
        run=result.run, phases=result.phases, nodes=_read_nodes(cluster, result), reservations=reservations
    )


def read_reservations(region: str, names: Iterable[str]) -> tuple[ReservationFacts, ...]:
    """Return the reservations with these ids, in any state."""
    if not (ids := list(names)):
        return ()
    described = client("ec2", region).describe_capacity_reservations(CapacityReservationIds=ids)
    return tuple(
        ReservationFacts(
            id=each["CapacityReservationId"],
            state=each["State"],
            zone=each["AvailabilityZone"],
            instances=each["TotalInstanceCount"],
            available=each["AvailableInstanceCount"],
        )
        for each in described["CapacityReservations"]
    )


def _read_nodes(cluster: Cluster, result: LaunchResult) -> tuple[NodeFacts, ...]:
    if not result.nodes:
        return ()
    events = list(node_events(Cursor(cluster.data, RunLayout(result.run).events)))
    response = client("ec2", cluster.region).describe_instances(InstanceIds=list(result.nodes))
    described = [instance for part in response["Reservations"] for instance in part["Instances"]]
    return tuple(_node_facts(cluster.region, instance, events) for instance in described)


def _node_facts(region: str, instance: Mapping[str, Any], events: Iterable[Any]) -> NodeFacts:
    name, launched = instance["InstanceId"], instance["LaunchTime"].timestamp()
    own = sorted((event for event in events if event.instance == name), key=lambda event: event.time)

    def seconds(kind: type[PlaybookEvent] | type[AgentEvent], attribute: str, value: str) -> float | None:
        """Return the seconds until the first event of this kind with this state."""
        times = (event.time for event in own if isinstance(event, kind) and getattr(event, attribute) == value)
        first = next(times, None)
        return None if first is None else round(first - launched, 1)

    return NodeFacts(
        instance=name,
        instance_type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        market=instance.get("InstanceLifecycle", "on-demand"),
        reservation=instance.get("CapacityReservationId"),
        spot_request=_spot_request(region, instance.get("SpotInstanceRequestId")),
        first_event_seconds=seconds(PlaybookEvent, "status", "started"),
        configured_seconds=seconds(PlaybookEvent, "status", "ok"),
        job_seconds=seconds(AgentEvent, "state", "workers_up"),
    )


def _spot_request(region: str, name: str | None) -> str | None:
    """Return id and status code of a Spot request, such as fulfilled (EC2 user guide, "Get the status")."""
    if not name:
        return None
    try:
        response = client("ec2", region).describe_spot_instance_requests(SpotInstanceRequestIds=[name])
    except (BotoCoreError, ClientError) as error:  # the permission is for this report only
        return f"{name}: {error}"
    return ", ".join(f"{name} {each['Status']['Code']}" for each in response["SpotInstanceRequests"])


def describe_leftovers(
    region: str, retained: Iterable[ExistingResource], remaining: Iterable[ExistingResource], destroy_command: str
) -> tuple[Leftover, ...]:
    """Return what exists, with its price and the command that ends it. `destroy_command`: for other kinds."""
    return tuple(
        Leftover(
            kind=each.kind,
            id=each.id,
            state=each.state,
            retained=is_retained,
            price=_price(region, each),
            command=_END_COMMANDS.get(each.kind, destroy_command).format(region=region, id=each.id),
        )
        for is_retained, resources in ((False, remaining), (True, retained))
        for each in resources
    )


def _price(region: str, resource: ExistingResource) -> str:
    """Return the list price of a resource, as text."""
    listed = prices()
    match resource.kind:
        case "ec2:instance":
            described = client("ec2", region).describe_instances(InstanceIds=[resource.id])
            return _instance_price(described["Reservations"][0]["Instances"][0]["InstanceType"], 1)
        case "ec2:capacity-reservation":
            reservation = describe_reservation(region, resource.id)
            return _instance_price(reservation["InstanceType"], reservation["TotalInstanceCount"])
        case "ec2:natgateway":
            return f"{listed.nat_gateway_hour:g} USD per hour"
        case "ec2:elastic-ip":
            return f"{listed.public_ipv4_hour:g} USD per hour"
        case "ec2:vpc-endpoint":
            return f"{listed.interface_endpoint_hour:g} USD per hour (a gateway endpoint is free)"
        case "ec2:volume":
            return f"{listed.gp3_gb_month:g} USD per GiB and month"
        case "kms:key":
            return f"{listed.kms_key_month:g} USD per month"
        case "s3":
            return "billed by its size"
    return "no price per hour"


def _instance_price(instance_type: str, count: int) -> str:
    entry = catalog().get(instance_type)
    if entry is None or entry.on_demand_usd is None:
        return f"{count} x the price of {instance_type}"
    return f"{entry.on_demand_usd * count:.2f} USD per hour"
