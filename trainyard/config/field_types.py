"""Types of setting fields: numbers and strings with the syntax that AWS or S3 requires."""

import re
from collections.abc import Callable
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, AllowInfNan, BeforeValidator
from pydantic_core import PydanticCustomError

_IMAGE_RELEASE = r"\d{8}(?:[.-]\d+)?"


def validation_error(code: LiteralString, reason: str, key: str = "") -> PydanticCustomError:
    """Return the error of a pydantic validator. `code` and `reason` become those of the Problem.

    key: of the setting to change, such as `optimizer.kind`, in the object that is validated; empty: the object.
    """
    return PydanticCustomError(code, "{reason}", {"reason": reason, "key": key})


def _refuse_boolean(error_type: str) -> BeforeValidator:
    """YAML's true and false are no numbers, though Python converts them."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticCustomError(error_type, "a boolean")
        return value

    return BeforeValidator(check)


Integer = Annotated[int, _refuse_boolean("int_type")]
Number = Annotated[float, _refuse_boolean("float_type"), AllowInfNan(False)]


def split_image_name(name: str) -> tuple[str, str | None]:
    """Split the name of an image into its family and its release; None if it has none. An id is its own family."""
    match = re.fullmatch(rf"(.+?)-({_IMAGE_RELEASE})", name)
    return (match[1], match[2]) if match and not name.startswith("ami-") else (name, None)


def matching(pattern: str, description: str) -> Callable[[str], str]:
    """A validator of a string that must match `pattern`; `description` completes the message "must be ..."."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise validation_error("invalid_format", f"must be {description}")
        return value

    return check


JobName = Annotated[
    str,
    AfterValidator(
        matching("[a-z][a-z0-9-]{0,30}", "a lower-case letter, then up to 30 lower-case letters, digits and hyphens")
    ),
]
_DATASET = "[a-z0-9][a-z0-9._-]{0,62}"
DatasetName = Annotated[
    str,
    AfterValidator(matching(_DATASET, "up to 63 lower-case letters, digits, dots, hyphens and underscores")),
]
RunId = Annotated[
    str, AfterValidator(matching("[a-z0-9][a-z0-9-]{0,62}", "the id of a run, such as 20260131-183012-base-4f1a"))
]
VariableName = Annotated[
    str,
    AfterValidator(
        matching("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable: letters, digits and underscores")
    ),
]
ParameterName = Annotated[
    str,
    AfterValidator(matching("[A-Za-z0-9_./-]{1,1011}", "the name of an SSM parameter: letters, digits and . - _ /")),
]
ContainerImage = Annotated[
    str,
    AfterValidator(
        matching(
            r"[a-z0-9][\w.:/@-]{0,454}",  # name of 255, tag of 128 and digest of 71 characters
            "a reference to a container image, such as nvcr.io/nvidia/pytorch:26.10-py3",
        )
    ),
]
# S3 user guide, "General purpose bucket naming rules". Dots are refused: TLS to the bucket's virtual host fails.
BucketName = Annotated[
    str,
    AfterValidator(
        matching(
            "[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
            "the name of a bucket: 3 to 63 lower-case letters, digits and hyphens, without a hyphen at either end",
        )
    ),
]
# Characters that S3 recommends for keys. Others are wildcards or variables in the IAM policy of the nodes.
_S3_PREFIX = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()=+@,/-]*)?"
_HUB_MODEL = r"hf://[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
DATASET_SCHEME = "dataset:"
HUB_SCHEME = "hf://"


def is_s3_uri(text: str) -> bool:
    """Return whether a setting is an S3 URI and not one of its other values."""
    return text.startswith("s3://")


def _s3_prefix(value: str) -> str | None:
    """Return an S3 prefix that ends with a slash: permissions for it include no other prefix. None if it is invalid."""
    if not re.fullmatch(_S3_PREFIX, value) or "//" in value.removeprefix("s3://"):
        return None
    return value if value.endswith("/") else f"{value}/"


def _check_data_source(value: str) -> str:
    if (prefix := value if value in ("s3", "fsx") else _s3_prefix(value)) is None:
        raise validation_error("invalid_format", "must be s3, fsx, or an S3 prefix such as s3://bucket/prefix/")
    return prefix


def _check_model_source(value: str) -> str:
    dataset = value.removeprefix(DATASET_SCHEME) if value.startswith(DATASET_SCHEME) else None
    if re.fullmatch(_HUB_MODEL, value) or (dataset is not None and re.fullmatch(_DATASET, dataset)):
        return value
    if (prefix := _s3_prefix(value)) is None:
        raise validation_error(
            "invalid_format",
            "must be an S3 prefix such as s3://bucket/prefix/, a model of the Hugging Face hub such as "
            "hf://meta-llama/Llama-3.1-8B, or dataset: and the name of a dataset of the data bucket",
        )
    return prefix


DataSource = Annotated[str, AfterValidator(_check_data_source)]
ModelSource = Annotated[str, AfterValidator(_check_model_source)]
ZoneName = Annotated[
    str,
    AfterValidator(
        matching("[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]?(-[a-z0-9]+-[0-9]+[a-z])?", "an Availability Zone, such as us-east-1a")
    ),
]
ReservationId = Annotated[
    str, AfterValidator(matching("cr-[0-9a-f]{8,17}", "the id of a capacity reservation, such as cr-0123456789abcdef0"))
]
VpcId = Annotated[str, AfterValidator(matching("vpc-[0-9a-f]{8,17}", "the id of a VPC, such as vpc-0123456789abcdef0"))]
SubnetId = Annotated[
    str, AfterValidator(matching("subnet-[0-9a-f]{8,17}", "the id of a subnet, such as subnet-0123456789abcdef0"))
]
KeyArn = Annotated[
    str,
    AfterValidator(
        matching(
            "arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}",
            "the ARN of a KMS key, such as arn:aws:kms:us-east-1:123456789012:key/ and the key's id",
        )
    ),
]
PolicyArn = Annotated[
    str,
    AfterValidator(
        matching(
            r"arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9+=,.@_/-]{1,512}",
            "the ARN of an IAM policy, such as arn:aws:iam::123456789012:policy/boundary",
        )
    ),
]
EmailAddress = Annotated[
    str, AfterValidator(matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an email address, such as team@example.com"))
]
# EC2 user guide, "Tag restrictions"; keys with the prefix aws: are reserved.
TagKey = Annotated[
    str,
    AfterValidator(
        matching(
            r"(?!(?i:aws):)[\w\s.:/=+\-@]{1,128}",
            "a tag key: up to 128 letters, digits, spaces and _ . : / = + - @, without the prefix aws:",
        )
    ),
]
TagValue = Annotated[
    str,
    AfterValidator(
        matching(r"[\w\s.:/=+\-@]{0,256}", "a tag value: up to 256 letters, digits, spaces and _ . : / = + - @")
    ),
]
ImageName = Annotated[
    str,
    AfterValidator(
        matching(
            rf"(deep-learning|ubuntu-24\.04|debian-12)(-{_IMAGE_RELEASE})?|ami-[0-9a-f]{{8,17}}",
            "deep-learning, ubuntu-24.04, debian-12, one of these with a release such as deep-learning-20260724, or "
            "the id of an image such as ami-0123456789abcdef0",
        )
    ),
]
