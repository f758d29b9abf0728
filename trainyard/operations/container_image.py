"""The container image of a run: the launch resolves its tag to a digest once, for all nodes and attempts.

The launch resolves with the access that nodes have: ECR with IAM, other registries without a login.
"""

from trainyard.aws.ecr import parse_ecr_image
from trainyard.aws.image_digests import find_image_digest
from trainyard.errors import InputError, Problem
from trainyard.models.manifest import Manifest
from trainyard.operations.container_registry import find_digest, parse_image
from trainyard.operations.progress import Display


def resolve_container_image(manifest: Manifest, display: Display) -> str | None:
    """Return the job's container image as `name@digest`; None for a job without a container.

    An image that names its digest is returned as it is, and so is that of a machine image with its own Docker (the
    role `container` is skipped): nodes do not pull it. Raises InputError if the tag cannot be resolved.
    """
    image = manifest.job.container
    if image is None or "@" in image or not manifest.node.runs_role("container"):
        return image
    reference, ecr_image = parse_image(image), parse_ecr_image(image)
    name_digest = f"or name its digest (docker buildx imagetools inspect {image})"
    try:
        digest = find_image_digest(ecr_image, reference.tag) if ecr_image else find_digest(reference)
    except LookupError as error:
        fix, code = "Correct name and tag, or push the image", "container_image_missing"
        reason = str(error)
    except PermissionError as error:
        code = "container_image_denied"
        if ecr_image:
            reason = str(error)
            where = "for your role, and for a repository of another account in its policy"
            fix = f"Allow ecr:BatchGetImage {where}, {name_digest}"
        else:
            reason = f"it does not exist, or needs a login that nodes do not have: {error}"
            fix = f"Correct the name, copy the image to ECR, {name_digest} if the AMI has a login for the registry"
    except OSError as error:
        reason, code = f"the registry has not returned its digest: {error}", "container_registry_failed"
        fix = f"Check network, proxy (HTTPS_PROXY) and CA certificates of this machine, {name_digest}"
    else:
        resolved = f"{reference.name}@{digest}"
        display.line("container", f"{image}: the tag is resolved to {resolved}")
        return resolved
    raise InputError([Problem("job.container", image, reason, fix, code)])
