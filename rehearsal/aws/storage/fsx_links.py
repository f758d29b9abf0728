"""Data repository associations of FSx for Lustre: file systems linked to S3, and the backups that a link excludes.

Sources: FSx API reference, CreateDataRepositoryAssociation ("supported on all FSx for Lustre 2.12 and 2.15 file
systems, excluding scratch_1 deployment type") and CreateBackup (only of file systems that "are not linked to a data
repository"), neither of which names the error's code for each.
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
from rehearsal.aws.extension import extend
from rehearsal.aws.lookup import bucket_of

CREATING_SECONDS = 0.5
DELETING_SECONDS = 0.5
_MOST = 8  # of one file system
_EVENTS = {"NEW", "CHANGED", "DELETED"}
_KNOWN = {
    "BatchImportMetaDataOnCreate",
    "ClientRequestToken",
    "DataRepositoryPath",
    "FileSystemId",
    "FileSystemPath",
    "S3",
    "Tags",
}


def bad_request(message: str) -> JsonRESTError:
    return JsonRESTError("BadRequest", message)


class Association:
    """A link: CREATING, then AVAILABLE; FAILED without its bucket; DELETING once deletion was asked, then gone."""

    def __init__(self, backend: Any, params: dict[str, Any]) -> None:
        self.backend, self.id = backend, f"dra-{uuid4().hex[:17]}"
        self.file_system, self.path = params["FileSystemId"], params["FileSystemPath"]
        self.repository = params["DataRepositoryPath"]
        self.imports = bool(params.get("BatchImportMetaDataOnCreate"))
        self.s3: dict[str, Any] = params.get("S3") or {}
        self.arn = f"arn:aws:fsx:{backend.region_name}:{backend.account_id}:association/{self.file_system}/{self.id}"
        self._changed, self._created, self._deleted = 0.0, CLOCK.now(), 0.0
        if params.get("Tags"):
            backend.tagger.tag_resource(self.arn, params["Tags"])

    @property
    def lifecycle(self) -> str:
        if self._deleted:
            return "DELETING"
        if bucket_of(_bucket(self.repository)) is None:
            return "FAILED"
        if CLOCK.now() - self._created < CREATING_SECONDS:
            return "CREATING"
        return "UPDATING" if CLOCK.now() - self._changed < CREATING_SECONDS else "AVAILABLE"

    @property
    def gone_at(self) -> float | None:
        return self._deleted + DELETING_SECONDS if self._deleted else None

    def change(self, s3: dict[str, Any]) -> None:
        self.s3, self._changed = {**self.s3, **s3}, CLOCK.now()

    def delete(self) -> None:
        self._deleted = self._deleted or CLOCK.now()

    def to_dict(self) -> dict[str, Any]:
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
            "CreationTime": self._created,
        }


def links(backend: Any) -> dict[str, Association]:
    """The associations of a region, by id."""
    found: dict[str, Association] = vars(backend).setdefault("associations", {})
    return found


def links_of(backend: Any, file_system: str) -> list[Association]:
    return [each for each in links(backend).values() if each.file_system == file_system]


def _bucket(repository: str) -> str:
    return repository.removeprefix("s3://").partition("/")[0]


def _check(backend: Any, params: dict[str, Any]) -> None:
    if unknown := params.keys() - _KNOWN:
        raise NotImplementedError(f"a data repository association with {', '.join(sorted(unknown))}")
    name = params["FileSystemId"]
    found = backend.file_systems.get(name)
    if found is None:
        raise FileSystemNotFound(name)
    if found.lifecycle != "AVAILABLE":
        raise bad_request(f"The file system {name} is {found.lifecycle}.")
    deployment = found.lustre_configuration["DeploymentType"]
    if deployment == "SCRATCH_1" or found.version == "2.10":
        message = f"A data repository association needs Lustre 2.12 or newer and no SCRATCH_1: {name} is {deployment}"
        raise JsonRESTError("UnsupportedOperation", f"{message}, version {found.version}.")
    if found.keeps_backups:
        raise bad_request(f"The file system {name} has automatic backups: it can't be linked to a data repository.")
    if not params["DataRepositoryPath"].startswith("s3://") or bucket_of(_bucket(params["DataRepositoryPath"])) is None:
        raise bad_request(f"The data repository {params['DataRepositoryPath']} can't be reached.")
    path = params.get("FileSystemPath") or "/"
    if not path.startswith("/"):
        raise bad_request(f"The file system path {path} does not begin with /.")
    others = links_of(backend, name)
    if len(others) >= _MOST:
        raise JsonRESTError("ServiceLimitExceeded", f"A file system has at most {_MOST} data repository associations.")
    for other in others:
        if _overlap(other.path, path) or _overlap(other.repository, params["DataRepositoryPath"]):
            raise bad_request(f"The association overlaps with {other.id}.")
    _check_policies(params.get("S3") or {})


def _overlap(one: str, other: str) -> bool:
    """Whether a path is the other, or one of them in the other."""
    first, second = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


def _check_policies(s3: dict[str, Any]) -> None:
    for policy in s3.values():
        if not set(policy.get("Events") or []) <= _EVENTS:
            raise bad_request(f"Invalid events {policy['Events']}: they are NEW, CHANGED and DELETED.")


def _found(backend: Any, name: str) -> Association:
    if name not in links(backend):
        raise JsonRESTError("DataRepositoryAssociationNotFound", f"No data repository association '{name}' exists.")
    return links(backend)[name]


def create_data_repository_association(self: Any) -> str:
    backend, params = self.fsx_backend, json.loads(self.body)
    answered: dict[str, Association] = vars(backend).setdefault("_link_tokens", {})
    token = params.get("ClientRequestToken")
    made = answered.get(token)
    if made is None:
        _check(backend, params)
        made = Association(backend, {**params, "FileSystemPath": params.get("FileSystemPath") or "/"})
        links(backend)[made.id] = made
        if token:
            answered[token] = made
    return json.dumps({"Association": made.to_dict()})


def describe_data_repository_associations(self: Any) -> str:
    backend, params = self.fsx_backend, json.loads(self.body)
    found = [_found(backend, name) for name in params.get("AssociationIds") or []] or list(links(backend).values())
    for each in params.get("Filters") or []:
        if each["Name"] != "file-system-id":
            raise NotImplementedError(f"the filter {each['Name']}")
        found = [link for link in found if link.file_system in each["Values"]]
    return json.dumps({"Associations": [link.to_dict() for link in found]})


def update_data_repository_association(self: Any) -> str:
    params = json.loads(self.body)
    found = _found(self.fsx_backend, params["AssociationId"])
    if params.get("ImportedFileChunkSize") is not None:
        raise NotImplementedError("an association's ImportedFileChunkSize")
    _check_policies(params.get("S3") or {})
    found.change(params.get("S3") or {})
    return json.dumps({"Association": found.to_dict()})


def delete_data_repository_association(self: Any) -> str:
    params = json.loads(self.body)
    found = _found(self.fsx_backend, params["AssociationId"])
    found.delete()
    deletes = bool(params.get("DeleteDataInFileSystem"))
    return json.dumps({"AssociationId": found.id, "Lifecycle": found.lifecycle, "DeleteDataInFileSystem": deletes})


def create_backup(self: Any) -> str:
    name = json.loads(self.body).get("FileSystemId")
    found = self.fsx_backend.file_systems.get(name)
    if found is None:
        raise FileSystemNotFound(name)
    check_backup(self.fsx_backend, found)
    answer: str = _moto_backup(self)
    return answer


def check_backup(backend: Any, file_system: Any) -> None:
    """Refuse a backup of what can have none."""
    name, deployment = file_system.file_system_id, file_system.lustre_configuration["DeploymentType"]
    if deployment.startswith("SCRATCH"):
        raise bad_request(f"Backups are not supported on the deployment type {deployment} of {name}.")
    if links_of(backend, name):
        raise bad_request(f"Backups are not supported on {name}: it is linked to a data repository.")


def _deletions() -> Iterator[Due]:
    backend: Any
    for _, _, backend in fsx_backends.iter_backends():
        for name, each in links(backend).items():
            if each.gone_at is not None:
                yield each.gone_at, lambda backend=backend, name=name: links(backend).pop(name)  # type: ignore[misc]


_moto_backup = FSxResponse.create_backup


def install() -> None:
    extend(
        FSxResponse,
        create_data_repository_association,
        describe_data_repository_associations,
        update_data_repository_association,
        delete_data_repository_association,
        create_backup,
    )
    CLOCK.watch(_deletions)
