"""FSx for Lustre: the life cycle of a file system, its DNS and mount names and its network interfaces."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from moto.core.exceptions import JsonRESTError
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends
from moto.fsx.exceptions import FileSystemNotFound
from moto.fsx.models import FileSystem, FSxBackend, fsx_backends
from moto.fsx.responses import FSxResponse

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.extension import extend
from rehearsal.aws.storage.fsx_links import bad_request, check_backup, links, links_of
from rehearsal.aws.storage.keys import find_key

CREATING_SECONDS = 1.0
DELETING_SECONDS = 0.5
_THROUGHPUTS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
_DEPLOYMENTS = ("SCRATCH_1", "SCRATCH_2", *_THROUGHPUTS)
_KNOWN_OF_LUSTRE = {
    "AutomaticBackupRetentionDays",
    "CopyTagsToBackups",
    "DataCompressionType",
    "DeploymentType",
    "PerUnitStorageThroughput",
}
_INTERFACES = 2  # of the smallest file system: one for metadata, one for data


def _network_refusal(message: str) -> JsonRESTError:
    return JsonRESTError("InvalidNetworkSettings", message)


class LustreFileSystem(FileSystem):
    """One file system: CREATING, then AVAILABLE; DELETING once deletion was asked, then gone."""

    def __init__(self, backend: FSxBackend, params: dict[str, Any]) -> None:
        _check(backend, params)
        self.ec2: Any = ec2_backends[backend.account_id][backend.region_name]
        self._created, self._deleted = CLOCK.now(), 0.0
        lustre = params.get("LustreConfiguration") or {}
        mount_name = uuid4().hex[:8] if lustre.get("DeploymentType") in ("SCRATCH_2", *_THROUGHPUTS) else "fsx"
        groups = params.get("SecurityGroupIds") or []
        self.vpc_id, self.interfaces = self._make_interfaces(params["SubnetIds"][0], groups, params["StorageCapacity"])
        super().__init__(
            account_id=backend.account_id,
            region_name=backend.region_name,
            file_system_type="LUSTRE",
            storage_capacity=params["StorageCapacity"],
            storage_type=params.get("StorageType") or "SSD",
            subnet_ids=params["SubnetIds"],
            security_group_ids=groups,
            tags=params.get("Tags"),
            kms_key_id=_key(backend, params),
            windows_configuration=None,
            lustre_configuration={
                "WeeklyMaintenanceStartTime": "1:05:00",
                "DeploymentType": "SCRATCH_1",
                "CopyTagsToBackups": False,
                "AutomaticBackupRetentionDays": 0,
                "DataCompressionType": "NONE",
                **lustre,
                "MountName": mount_name,
            },
            ontap_configuration=None,
            open_zfs_configuration=None,
            backend=backend,
        )
        self.version = params.get("FileSystemTypeVersion") or ("2.12" if "PERSISTENT_2" in lustre.values() else "2.10")
        for interface in self.interfaces:
            interface.description = f"Created By Amazon FSx for file system {self.file_system_id}"

    def _make_interfaces(self, subnet_id: str, groups: list[str], capacity: int) -> tuple[str, list[Any]]:
        try:
            subnet = self.ec2.get_subnet(subnet_id)
        except EC2ClientError as error:
            raise _network_refusal(error.message) from None
        for group_id in groups:
            group = self.ec2.get_security_group_from_id(group_id)
            if group is None or group.vpc_id != subnet.vpc_id:
                raise _network_refusal(f"The security group {group_id} is not in the VPC of the subnet {subnet_id}.")
        made = [
            self.ec2.create_network_interface(subnet, None, group_ids=groups)
            for _ in range(max(_INTERFACES, 1 + capacity // 2400))
        ]
        for interface in made:
            interface.requester_managed = True
            interface.status = "in-use"
        return subnet.vpc_id, made

    @property
    def lifecycle(self) -> str:
        if self._deleted:
            return "DELETING"
        return "AVAILABLE" if CLOCK.now() - self._created >= CREATING_SECONDS else "CREATING"

    @property
    def keeps_backups(self) -> bool:
        """Whether automatic backups are made of it."""
        return int((self.lustre_configuration or {}).get("AutomaticBackupRetentionDays") or 0) > 0

    @property
    def gone_at(self) -> float | None:
        """When its deletion is over; none while nobody asked for it."""
        return self._deleted + DELETING_SECONDS if self._deleted else None

    def delete(self) -> None:
        self._deleted = self._deleted or CLOCK.now()

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "OwnerId": self.backend.account_id,
            "CreationTime": self._created,
            "Lifecycle": self.lifecycle,
            "VpcId": self.vpc_id,
            "NetworkInterfaceIds": [interface.id for interface in self.interfaces],
            "FileSystemTypeVersion": self.version,
        }


def _key(backend: Any, params: dict[str, Any]) -> str | None:
    """ARN of the key that it is encrypted under, where one is named."""
    asked = params.get("KmsKeyId")
    found = find_key(backend.account_id, backend.region_name, asked) if asked else None
    return found and str(found.arn)


def _check(backend: Any, params: dict[str, Any]) -> None:
    """Refuse what FSx refuses of a Lustre file system."""
    if params.get("FileSystemType") != "LUSTRE":
        raise NotImplementedError(f"a file system of type {params.get('FileSystemType')}")
    lustre, capacity = params.get("LustreConfiguration") or {}, int(params.get("StorageCapacity") or 0)
    deployment, throughput = lustre.get("DeploymentType", "SCRATCH_1"), lustre.get("PerUnitStorageThroughput")
    if unknown := lustre.keys() - _KNOWN_OF_LUSTRE:
        raise NotImplementedError(f"a Lustre file system with {', '.join(sorted(unknown))}")
    if len(params.get("SubnetIds") or []) != 1:
        raise bad_request("A Lustre file system takes exactly one subnet ID.")
    if deployment not in _DEPLOYMENTS:
        raise bad_request(f"Invalid deployment type {deployment}.")
    if capacity != 1200 and (capacity <= 0 or capacity % 2400):
        raise bad_request(f"Invalid storage capacity {capacity}: must be 1200 GiB or a multiple of 2400 GiB.")
    allowed = _THROUGHPUTS.get(deployment)
    if allowed and throughput not in allowed:
        values = ", ".join(map(str, allowed))
        raise bad_request(f"Invalid PerUnitStorageThroughput {throughput} for {deployment}: must be one of {values}.")
    if not allowed and throughput is not None:
        raise bad_request(f"PerUnitStorageThroughput is not valid for {deployment}.")
    _check_scratch(backend, params, lustre, deployment)


def _check_scratch(backend: Any, params: dict[str, Any], lustre: dict[str, Any], deployment: str) -> None:
    """Backups and a key of one's own are for PERSISTENT file systems. Source: API reference, CreateFileSystem."""
    scratch, days = deployment.startswith("SCRATCH"), int(lustre.get("AutomaticBackupRetentionDays") or 0)
    if not 0 <= days <= 90:
        raise bad_request(f"Invalid AutomaticBackupRetentionDays {days}: must be 0 to 90.")
    if scratch and (days or lustre.get("CopyTagsToBackups")):
        raise bad_request(f"Backups are not supported on the deployment type {deployment}.")
    key = params.get("KmsKeyId")
    if key and scratch:
        raise bad_request(f"KmsKeyId is not valid for {deployment}.")
    found = find_key(backend.account_id, backend.region_name, key) if key else None
    if key and (found is None or found.key_state != "Enabled"):
        raise bad_request(f"The KMS key {key} {'does not exist' if found is None else f'is {found.key_state}'}.")


def _deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in fsx_backends.iter_backends():
        for name, each in backend.file_systems.items():
            if each.gone_at is not None:
                yield each.gone_at, lambda backend=backend, name=name: _remove(backend, name)  # type: ignore[misc]


def _remove(backend: Any, name: str) -> None:
    """The file system goes, and its interfaces and links with it."""
    for link in links_of(backend, name):
        links(backend).pop(link.id)
    for interface in backend.file_systems.pop(name).interfaces:
        interface.ec2_backend.enis.pop(interface.id, None)


def create_file_system(self: Any) -> str:
    params = json.loads(self.body)
    backend, token = self.fsx_backend, params.get("ClientRequestToken")
    answered: dict[str, Any] = vars(backend).setdefault("_client_tokens", {})
    made = answered.get(token)
    if made is None:
        made = LustreFileSystem(backend, params)
        backend.file_systems[made.file_system_id] = made
        if token:
            answered[token] = made
    return json.dumps({"FileSystem": made.to_dict()})


def describe_file_systems(self: Any) -> str:
    living = self.fsx_backend.file_systems
    for name in json.loads(self.body).get("FileSystemIds") or []:
        if name not in living:
            raise FileSystemNotFound(name)
    answer: str = _moto_describe(self)
    return answer


def delete_file_system(self: Any) -> str:
    """With a final backup where one is asked for: the default is none."""
    params = json.loads(self.body)
    name, backend = params["FileSystemId"], self.fsx_backend
    found = backend.file_systems.get(name)
    if found is None:
        raise FileSystemNotFound(name)
    lustre = params.get("LustreConfiguration") or {}
    answer: dict[str, Any] = {}
    if lustre.get("SkipFinalBackup", True) is False:
        check_backup(backend, found)
        tags = lustre.get("FinalBackupTags")
        answer["FinalBackupId"] = backend.create_backup(name, None, None, tags).backup_id
    found.delete()
    return json.dumps({"FileSystemId": name, "Lifecycle": found.lifecycle, "LustreResponse": answer})


_moto_describe = FSxResponse.describe_file_systems


def install() -> None:
    extend(FSxResponse, create_file_system, describe_file_systems, delete_file_system)
    CLOCK.watch(_deletions)
