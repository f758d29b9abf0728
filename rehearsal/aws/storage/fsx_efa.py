"""Metadata configuration and EFA of FSx for Lustre file systems.

Sources: FSx API reference, CreateFileSystemLustreMetadataConfiguration (deployment type, modes, values); FSx for Lustre
guide, "Working with EFA-enabled file systems" (PERSISTENT_2 with a metadata configuration, a security group that allows
all traffic within it). The unit of the storage capacity is that of public Terraform modules, which report that
CreateFileSystem rejects others. None of them documents the error codes.
"""

from typing import Any

from moto.ec2.models import ec2_backends

from rehearsal.aws.storage.fsx_associations import bad_request

_EFA_CAPACITY_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
_METADATA_IOPS = {1500, 3000, 6000, *range(12000, 192001, 12000)}


def validate_metadata(lustre: dict[str, Any]) -> None:
    """Raise FSx's error for an invalid metadata configuration. `lustre`: the request's LustreConfiguration."""
    metadata = lustre.get("MetadataConfiguration")
    if metadata is None:
        return
    mode, iops = metadata.get("Mode"), metadata.get("Iops")
    if lustre.get("DeploymentType") != "PERSISTENT_2":
        raise bad_request(f"MetadataConfiguration is not valid for {lustre.get('DeploymentType')}.")
    if mode not in ("AUTOMATIC", "USER_PROVISIONED"):
        raise bad_request(f"Invalid metadata configuration mode {mode}.")
    if (mode == "USER_PROVISIONED") != (iops is not None):
        raise bad_request(f"Iops {iops} is not valid for the metadata configuration mode {mode}.")
    if iops is not None and iops not in _METADATA_IOPS:
        raise bad_request(f"Invalid metadata Iops {iops}.")


def validate_efa(backend: Any, params: dict[str, Any]) -> None:
    """Raise FSx's error for an EFA-enabled file system that does not meet the conditions."""
    lustre = params.get("LustreConfiguration") or {}
    if not lustre.get("EfaEnabled"):
        return
    if lustre.get("DeploymentType") != "PERSISTENT_2" or "MetadataConfiguration" not in lustre:
        raise bad_request("EfaEnabled requires the deployment type PERSISTENT_2 and a metadata configuration.")
    step = _EFA_CAPACITY_GIB[lustre["PerUnitStorageThroughput"]]
    if params["StorageCapacity"] % step:
        raise bad_request(f"Invalid storage capacity {params['StorageCapacity']}: must be a multiple of {step} GiB.")
    ec2: Any = ec2_backends[backend.account_id][backend.region_name]
    groups = [ec2.get_security_group_from_id(group_id) for group_id in params.get("SecurityGroupIds") or []]
    if not any(group and _allows_all_within(group) for group in groups):
        raise bad_request("EfaEnabled requires a security group that allows all traffic to and from itself.")


def _allows_all_within(group: Any) -> bool:
    """Return whether the group allows all traffic from and to its members."""
    return all(
        any(rule.ip_protocol == "-1" and rule.source_group.get("GroupId") == group.id for rule in rules)
        for rules in (group.ingress_rules, group.egress_rules)
    )
