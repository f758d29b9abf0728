"""Amazon ECR: the endpoints that nodes need, and the parts of an image reference."""

import re
from dataclasses import dataclass

# ECR user guide, "Amazon ECR interface VPC endpoints": the ECR API, and the registry API that Docker clients use. Image
# layers are downloaded from S3.
ECR_SERVICES = ("ecr.api", "ecr.dkr")
_IMAGE = re.compile(r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)(?:[:@].*)?")


@dataclass(frozen=True)
class EcrImage:
    """An image in a private ECR registry.

    `account` owns the registry; it may be another account, such as that of the AWS Deep Learning Containers.
    """

    account: str
    region: str
    repository: str

    def arn(self, partition: str) -> str:
        """Return the ARN of the repository."""
        return f"arn:{partition}:ecr:{self.region}:{self.account}:repository/{self.repository}"


def parse_ecr_image(image: str | None) -> EcrImage | None:
    """Parse an image reference; return None when it does not name a private ECR registry."""
    match = _IMAGE.fullmatch(image or "")
    return EcrImage(*match.groups()) if match else None
