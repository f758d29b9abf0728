"""Digests of the images in Amazon ECR."""

from botocore.exceptions import ClientError

from trainyard.aws.clients import client
from trainyard.aws.ecr import EcrImage

# Of the manifests that Docker pulls, those of several platforms first (OCI image specification, "Media Types").
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


def find_image_digest(image: EcrImage, tag: str) -> str:
    """Return the digest of a tag. BatchGetImage is the permission with which Docker reads it (ECR API reference).

    Raises LookupError if repository or tag does not exist, and PermissionError if ECR denies the request.
    """
    try:
        response = client("ecr", image.region).batch_get_image(
            registryId=image.account,
            repositoryName=image.repository,
            imageIds=[{"imageTag": tag}],
            acceptedMediaTypes=MANIFEST_TYPES,
        )
    except ClientError as error:
        details = error.response["Error"]
        if details["Code"] == "RepositoryNotFoundException":
            where = f"account {image.account}, {image.region}"
            raise LookupError(f"ECR has no repository {image.repository} in {where}: {details['Message']}") from None
        if details["Code"] == "AccessDeniedException":
            raise PermissionError(f"ECR denies the request: {details['Message']}") from None
        raise
    for each in response["images"]:
        return str(each["imageId"]["imageDigest"])
    failure = response["failures"][0]["failureReason"]
    raise LookupError(f"ECR has no tag {tag} of {image.repository} in {image.region}: {failure}")
