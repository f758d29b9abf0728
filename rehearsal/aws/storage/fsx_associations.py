"""Data repository associations of FSx for Lustre: file systems linked to S3 buckets, which exclude backups.

Sources: FSx API reference, CreateDataRepositoryAssociation ("supported on all FSx for Lustre 2.12 and 2.15 file
systems, excluding scratch_1 deployment type") and CreateBackup (only of file systems that "are not linked to a data
repository"). Neither page documents the error codes.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from moto.core.exceptions import JsonRESTError
from moto.fsx.exceptions import FileSystemNotFound
from moto.fsx.models import fsx_backends
from moto.fsx.responses import FSxResponse

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.lookup import find_bucket
from rehearsal.aws.moto_extension import extend

CREATING_SECONDS = 0.5
DELETING_SECONDS = 0.5
_MAXIMUM_ASSOCIATIONS = 8  # per file system
_EVENTS = {"NEW", "CHANGED", "DELETED"}
_SUPPORTED_KEYS = {
    "BatchImportMetaDataOnCreate",
    "ClientRequestToken",
    "DataRepositoryPath",
    "FileSystemId",
    "FileSystemPath",
    "S3",
    "Tags",
}


def bad_request(message: str) -> JsonRESTError:
    """Return FSx's BadRequest error."""
    return JsonRESTError("BadRequest", message)


class Association:
    """An association: CREATING, then AVAILABLE; FAILED without its bucket; DELETING, then removed."""

    def __init__(self, backend: Any, params: dict[str, Any]) -> None:
        self.backend, self.id = backend, f"dra-{uuid4().hex[:17]}"
        self.file_system, self.path = params["FileSystemId"], params["FileSystemPath"]
        self.repository = params["DataRepositoryPath"]
        self.imports = bool(params.get("BatchImportMetaDataOnCreate"))
        self.s3: dict[str, Any] = params.get("S3") or {}
        self.arn = f"arn:aws:fsx:{backend.region_name}:{backend.account_id}:association/{self.file_system}/{self.id}"
        self._updated_at, self._created_at, self._deletion_requested_at = 0.0, CLOCK.now(), 0.0
        if params.get("Tags"):
            backend.tagger.tag_resource(self.arn, params["Tags"])

    @property
    def lifecycle(self) -> str:
        """Lifecycle state by the account's clock."""
        if self._deletion_requested_at:
            return "DELETING"
        if find_bucket(_bucket_name(self.repository)) is None:
            return "FAILED"
        if CLOCK.now() - self._created_at < CREATING_SECONDS:
            return "CREATING"
        return "UPDATING" if CLOCK.now() - self._updated_at < CREATING_SECONDS else "AVAILABLE"

    @property
    def deleted_at(self) -> float | None:
        """Unix time at which the deletion completes; None before a deletion request."""
        return self._deletion_requested_at + DELETING_SECONDS if self._deletion_requested_at else None

    def update(self, s3: dict[str, Any]) -> None:
        """Merge the S3 settings of an update."""
        self.s3, self._updated_at = {**self.s3, **s3}, CLOCK.now()

    def delete(self) -> None:
        """Start the deletion."""
        self._deletion_requested_at = self._deletion_requested_at or CLOCK.now()

    def to_dict(self) -> dict[str, Any]:
        """Return the DataRepositoryAssociation structure of the API."""
        return {
            "AssociationId": self.id,
            "ResourceARN": self.arn,
            "FileSystemId": self.file_system,
            "Lifecycle": self.lifecycle,
            "FileSystemPath": self.path,
            "DataRepositoryPath": self.repository,
            "BatchImportMetaDataOnCreate": self.imports,
            "S3": self.s3,
            "Tags": self.backend.list_tags_for_resource(self.arn),
            "CreationTime": self._created_at,
        }


def associations(backend: Any) -> dict[str, Association]:
    """Return the associations of a region, by id."""
    by_id: dict[str, Association] = vars(backend).setdefault("associations", {})
    return by_id


def associations_of(backend: Any, file_system: str) -> list[Association]:
    """Return the associations of a file system."""
    return [entry for entry in associations(backend).values() if entry.file_system == file_system]


def _bucket_name(repository: str) -> str:
    return repository.removeprefix("s3://").partition("/")[0]


def _validate(backend: Any, params: dict[str, Any]) -> None:
    if unsupported := params.keys() - _SUPPORTED_KEYS:
        raise NotImplementedError(f"a data repository association with {', '.join(sorted(unsupported))}")
    name = params["FileSystemId"]
    file_system = backend.file_systems.get(name)
    if file_system is None:
        raise FileSystemNotFound(name)
    if file_system.lifecycle != "AVAILABLE":
        raise bad_request(f"The file system {name} is {file_system.lifecycle}.")
    deployment = file_system.lustre_configuration["DeploymentType"]
    if deployment == "SCRATCH_1" or file_system.version == "2.10":
        rule = "A data repository association requires Lustre 2.12 or newer and not SCRATCH_1"
        raise JsonRESTError("UnsupportedOperation", f"{rule}: {name} is {deployment}, version {file_system.version}.")
    if file_system.has_automatic_backups:
        raise bad_request(f"The file system {name} has automatic backups and can't be linked to a data repository.")
    if (
        not params["DataRepositoryPath"].startswith("s3://")
        or find_bucket(_bucket_name(params["DataRepositoryPath"])) is None
    ):
        raise bad_request(f"The data repository {params['DataRepositoryPath']} can't be reached.")
    path = params.get("FileSystemPath") or "/"
    if not path.startswith("/"):
        raise bad_request(f"The file system path {path} does not start with /.")
    others = associations_of(backend, name)
    if len(others) >= _MAXIMUM_ASSOCIATIONS:
        raise JsonRESTError(
            "ServiceLimitExceeded", f"A file system has at most {_MAXIMUM_ASSOCIATIONS} data repository associations."
        )
    for other in others:
        if _overlap(other.path, path) or _overlap(other.repository, params["DataRepositoryPath"]):
            raise bad_request(f"The association overlaps with {other.id}.")
    _validate_policies(params.get("S3") or {})


def _overlap(path: str, other: str) -> bool:
    """Return whether the paths are equal or one contains the other."""
    first, second = path.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


def _validate_policies(s3: dict[str, Any]) -> None:
    for policy in s3.values():
        if not set(policy.get("Events") or []) <= _EVENTS:
            raise bad_request(f"Invalid events {policy['Events']}: use NEW, CHANGED and DELETED.")


def _find(backend: Any, name: str) -> Association:
    if name not in associations(backend):
        raise JsonRESTError("DataRepositoryAssociationNotFound", f"No data repository association '{name}' exists.")
    return associations(backend)[name]


def create_data_repository_association(self: Any) -> str:
    """Create an association, once per client token."""
    backend, params = self.fsx_backend, json.loads(self.body)
    responses: dict[str, Association] = vars(backend).setdefault("_link_tokens", {})
    token = params.get("ClientRequestToken")
    association = responses.get(token)
    if association is None:
        _validate(backend, params)
        association = Association(backend, {**params, "FileSystemPath": params.get("FileSystemPath") or "/"})
        associations(backend)[association.id] = association
        if token:
            responses[token] = association
    return json.dumps({"Association": association.to_dict()})


def describe_data_repository_associations(self: Any) -> str:
    """Return associations by id and file system."""
    backend, params = self.fsx_backend, json.loads(self.body)
    names = params.get("AssociationIds") or []
    selected = [_find(backend, name) for name in names] or list(associations(backend).values())
    for entry in params.get("Filters") or []:
        if entry["Name"] != "file-system-id":
            raise NotImplementedError(f"the filter {entry['Name']}")
        selected = [association for association in selected if association.file_system in entry["Values"]]
    return json.dumps({"Associations": [association.to_dict() for association in selected]})


def update_data_repository_association(self: Any) -> str:
    """Change the S3 settings of an association."""
    params = json.loads(self.body)
    association = _find(self.fsx_backend, params["AssociationId"])
    if params.get("ImportedFileChunkSize") is not None:
        raise NotImplementedError("an association's ImportedFileChunkSize")
    _validate_policies(params.get("S3") or {})
    association.update(params.get("S3") or {})
    return json.dumps({"Association": association.to_dict()})


def delete_data_repository_association(self: Any) -> str:
    """Start the deletion of an association."""
    params = json.loads(self.body)
    association = _find(self.fsx_backend, params["AssociationId"])
    association.delete()
    deletes = bool(params.get("DeleteDataInFileSystem"))
    return json.dumps(
        {"AssociationId": association.id, "Lifecycle": association.lifecycle, "DeleteDataInFileSystem": deletes}
    )


def create_backup(self: Any) -> str:
    """Create a backup unless the file system excludes it."""
    name = json.loads(self.body).get("FileSystemId")
    file_system = self.fsx_backend.file_systems.get(name)
    if file_system is None:
        raise FileSystemNotFound(name)
    check_backup(self.fsx_backend, file_system)
    response: str = _moto_create_backup(self)
    return response


def check_backup(backend: Any, file_system: Any) -> None:
    """Raise FSx's error if the file system does not support backups."""
    name, deployment = file_system.file_system_id, file_system.lustre_configuration["DeploymentType"]
    if deployment.startswith("SCRATCH"):
        raise bad_request(f"Backups are not supported on the deployment type {deployment} of {name}.")
    if associations_of(backend, name):
        raise bad_request(f"Backups are not supported on {name}, which is linked to a data repository.")


def _due_deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in fsx_backends.iter_backends():
        for name, association in associations(backend).items():
            if association.deleted_at is not None:
                yield association.deleted_at, lambda backend=backend, name=name: associations(backend).pop(name)  # type: ignore[misc]


_moto_create_backup = FSxResponse.create_backup


def install() -> None:
    """Add the operations to moto and pending deletions to the clock."""
    extend(
        FSxResponse,
        create_data_repository_association,
        describe_data_repository_associations,
        update_data_repository_association,
        delete_data_repository_association,
        create_backup,
    )
    CLOCK.add_source(_due_deletions)
