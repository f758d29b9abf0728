"""Images in Amazon ECR: where one lies, as its own name says it."""

import re
from dataclasses import dataclass

# ECR user guide, "Amazon ECR interface VPC endpoints": its API, and the registry that a Docker client speaks to. The
# layers come from S3.
ECR_SERVICES = ("ecr.api", "ecr.dkr")
_IMAGE = re.compile(r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?:[:@].*)?")


@dataclass(frozen=True)
class EcrImage:
    """`account`: of the registry, which may be another's, such as that of AWS's deep-learning containers."""

    account: str
    region: str
    repository: str


def ecr_image(image: str | None) -> EcrImage | None:
    """What the reference to an image says; none where it names no private registry of ECR."""
    found = _IMAGE.fullmatch(image or "")
    return EcrImage(*found.groups()) if found else None
