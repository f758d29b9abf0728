"""FSx for Lustre: life cycle of file systems, their DNS and mount names, and their network interfaces.

A file system is CREATING and DELETING for minutes: terraform-provider-aws 5.100 waits 30 seconds after its creation and
10 minutes in its deletion before the first poll (measured).
"""

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

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.storage.fsx_associations import associations, associations_of, bad_request, check_backup
from rehearsal.aws.storage.fsx_efa import validate_efa, validate_metadata
from rehearsal.aws.storage.keys import find_key
from rehearsal.aws.timing import timing

_THROUGHPUTS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
_DEPLOYMENTS = ("SCRATCH_1", "SCRATCH_2", *_THROUGHPUTS)
_SUPPORTED_LUSTRE_KEYS = {
    "AutomaticBackupRetentionDays",
    "CopyTagsToBackups",
    "DataCompressionType",
    "DeploymentType",
    "EfaEnabled",
    "MetadataConfiguration",
    "PerUnitStorageThroughput",
}
_MINIMUM_INTERFACES = 2  # of the smallest file system: one for metadata, one for data


def _network_error(message: str) -> JsonRESTError:
    return JsonRESTError("InvalidNetworkSettings", message)


class LustreFileSystem(FileSystem):
    """A file system: CREATING, then AVAILABLE; DELETING after a deletion request, then removed.

    `deleted_at`: Unix time at which the deletion completes; None before a deletion request.
    """

    deleted_at: float | None = None

    def __init__(self, backend: FSxBackend, params: dict[str, Any]) -> None:
        _validate(backend, params)
        self.ec2: Any = ec2_backends[backend.account_id][backend.region_name]
        self._created = CLOCK.now()
        self._available_at = self._created + timing().fsx_creating_seconds
        lustre = params.get("LustreConfiguration") or {}
        mount_name = uuid4().hex[:8] if lustre.get("DeploymentType") in ("SCRATCH_2", *_THROUGHPUTS) else "fsx"
        groups = params.get("SecurityGroupIds") or []
        subnet = self._find_subnet(params["SubnetIds"][0], lustre.get("DeploymentType", "SCRATCH_1"))
        self.vpc_id, self.interfaces = self._create_interfaces(subnet, groups, params["StorageCapacity"])
        super().__init__(
            account_id=backend.account_id,
            region_name=backend.region_name,
            file_system_type="LUSTRE",
            storage_capacity=params["StorageCapacity"],
            storage_type=params.get("StorageType") or "SSD",
            subnet_ids=params["SubnetIds"],
            security_group_ids=groups,
            tags=params.get("Tags"),
            kms_key_id=_key_arn(backend, params),
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

    def _find_subnet(self, subnet_id: str, deployment: str) -> Any:
        """Return the subnet. Raises FSx's error if its zone does not have the deployment type."""
        try:
            subnet = self.ec2.get_subnet(subnet_id)
        except EC2ClientError as error:
            raise _network_error(error.message) from None
        if not ACTIVE_FAULTS.has_fsx_deployment(deployment, subnet.availability_zone):
            raise bad_request(
                "The file system creation request failed because Lustre file systems with the provided deployment type "
                f"({deployment}) are not available in the requested Availability Zone ({subnet.availability_zone})."
            )
        return subnet

    def _create_interfaces(self, subnet: Any, groups: list[str], capacity: int) -> tuple[str, list[Any]]:
        for group_id in groups:
            group = self.ec2.get_security_group_from_id(group_id)
            if group is None or group.vpc_id != subnet.vpc_id:
                raise _network_error(f"The security group {group_id} is not in the VPC of the subnet {subnet.id}.")
        interfaces = [
            self.ec2.create_network_interface(subnet, None, group_ids=groups)
            for _ in range(max(_MINIMUM_INTERFACES, 1 + capacity // 2400))
        ]
        for interface in interfaces:
            interface.requester_managed = True
            interface.status = "in-use"
        return subnet.vpc_id, interfaces

    @property
    def lifecycle(self) -> str:
        """Lifecycle state by the account's clock."""
        if self.deleted_at is not None:
            return "DELETING"
        return "AVAILABLE" if CLOCK.now() >= self._available_at else "CREATING"

    @property
    def has_automatic_backups(self) -> bool:
        """Whether automatic backups are enabled."""
        return int((self.lustre_configuration or {}).get("AutomaticBackupRetentionDays") or 0) > 0

    def delete(self) -> None:
        """Start the deletion."""
        if self.deleted_at is None:
            self.deleted_at = CLOCK.now() + timing().fsx_deleting_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the FileSystem structure of the API."""
        return {
            **super().to_dict(),
            "OwnerId": self.backend.account_id,
            "CreationTime": self._created,
            "Lifecycle": self.lifecycle,
            "VpcId": self.vpc_id,
            "NetworkInterfaceIds": [interface.id for interface in self.interfaces],
            "FileSystemTypeVersion": self.version,
        }


def _key_arn(backend: Any, params: dict[str, Any]) -> str | None:
    """Return the ARN of the key of the request, or None."""
    key_id = params.get("KmsKeyId")
    key = find_key(backend.account_id, backend.region_name, key_id) if key_id else None
    return key and str(key.arn)


def _validate(backend: Any, params: dict[str, Any]) -> None:
    """Raise FSx's error for an invalid Lustre file system, and NotImplementedError for unsupported parameters."""
    if params.get("FileSystemType") != "LUSTRE":
        raise NotImplementedError(f"a file system of type {params.get('FileSystemType')}")
    lustre, capacity = params.get("LustreConfiguration") or {}, int(params.get("StorageCapacity") or 0)
    deployment, throughput = lustre.get("DeploymentType", "SCRATCH_1"), lustre.get("PerUnitStorageThroughput")
    if unsupported := lustre.keys() - _SUPPORTED_LUSTRE_KEYS:
        raise NotImplementedError(f"a Lustre file system with {', '.join(sorted(unsupported))}")
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
    _validate_scratch(backend, params, lustre, deployment)
    validate_metadata(lustre)
    validate_efa(backend, params)


def _validate_scratch(backend: Any, params: dict[str, Any], lustre: dict[str, Any], deployment: str) -> None:
    """Validate backups and KMS keys, which require a PERSISTENT type. Source: API reference, CreateFileSystem."""
    scratch, days = deployment.startswith("SCRATCH"), int(lustre.get("AutomaticBackupRetentionDays") or 0)
    if not 0 <= days <= 90:
        raise bad_request(f"Invalid AutomaticBackupRetentionDays {days}: must be 0 to 90.")
    if scratch and (days or lustre.get("CopyTagsToBackups")):
        raise bad_request(f"Backups are not supported on the deployment type {deployment}.")
    key_id = params.get("KmsKeyId")
    if key_id and scratch:
        raise bad_request(f"KmsKeyId is not valid for {deployment}.")
    key = find_key(backend.account_id, backend.region_name, key_id) if key_id else None
    if key_id and (key is None or key.key_state != "Enabled"):
        raise bad_request(f"The KMS key {key_id} {'does not exist' if key is None else f'is {key.key_state}'}.")


def _due_deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in fsx_backends.iter_backends():
        for name, file_system in backend.file_systems.items():
            if file_system.deleted_at is not None:
                yield file_system.deleted_at, lambda backend=backend, name=name: _remove(backend, name)  # type: ignore[misc]


def _remove(backend: Any, name: str) -> None:
    """Remove the file system, its network interfaces and its data repository associations."""
    for association in associations_of(backend, name):
        associations(backend).pop(association.id)
    for interface in backend.file_systems.pop(name).interfaces:
        interface.ec2_backend.enis.pop(interface.id, None)


def create_file_system(self: Any) -> str:
    """Create a file system, once per client token."""
    params = json.loads(self.body)
    backend, token = self.fsx_backend, params.get("ClientRequestToken")
    responses: dict[str, Any] = vars(backend).setdefault("_client_tokens", {})
    file_system = responses.get(token)
    if file_system is None:
        file_system = LustreFileSystem(backend, params)
        backend.file_systems[file_system.file_system_id] = file_system
        if token:
            responses[token] = file_system
    return json.dumps({"FileSystem": file_system.to_dict()})


def describe_file_systems(self: Any) -> str:
    """Return file systems. Raises FileSystemNotFound for an unknown id."""
    file_systems = self.fsx_backend.file_systems
    for name in json.loads(self.body).get("FileSystemIds") or []:
        if name not in file_systems:
            raise FileSystemNotFound(name)
    response: str = _moto_describe(self)
    return response


def delete_file_system(self: Any) -> str:
    """Start the deletion, with a final backup if requested. The default is none."""
    params = json.loads(self.body)
    name, backend = params["FileSystemId"], self.fsx_backend
    file_system = backend.file_systems.get(name)
    if file_system is None:
        raise FileSystemNotFound(name)
    lustre = params.get("LustreConfiguration") or {}
    lustre_response: dict[str, Any] = {}
    if lustre.get("SkipFinalBackup", True) is False:
        check_backup(backend, file_system)
        tags = lustre.get("FinalBackupTags")
        lustre_response["FinalBackupId"] = backend.create_backup(name, None, None, tags).backup_id
    file_system.delete()
    return json.dumps({"FileSystemId": name, "Lifecycle": file_system.lifecycle, "LustreResponse": lustre_response})


_moto_describe = FSxResponse.describe_file_systems


def install() -> None:
    """Replace moto's operations on file systems and add pending deletions to the clock."""
    extend(FSxResponse, create_file_system, describe_file_systems, delete_file_system)
    CLOCK.add_source(_due_deletions)
