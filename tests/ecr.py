"""Container images in the emulated ECR."""

import hashlib
import json
from contextlib import suppress

from rehearsal.aws.process import ACCOUNT
from tests.conftest import REGION
from trainyard.aws.clients import client

REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"


def push_image(repository: str, tag: str, content: str) -> str:
    """Push an image, to which the tag moves; return its digest. Creates the repository if it does not exist."""
    ecr, media_type = client("ecr", REGION), "application/vnd.oci.image.manifest.v1+json"
    with suppress(ecr.exceptions.RepositoryAlreadyExistsException):
        ecr.create_repository(repositoryName=repository)
    manifest = json.dumps({"schemaVersion": 2, "mediaType": media_type, "annotations": {"content": content}})
    digest = f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"
    ecr.put_image(repositoryName=repository, imageTag=tag, imageManifest=manifest, imageDigest=digest)
    return digest
