"""How what a stack names must be spelled: texts that AWS or S3 would refuse are refused here, in words."""

from typing import Annotated

from pydantic import AfterValidator

from trainyard.config.validation_messages import spelled

JobName = Annotated[
    str,
    AfterValidator(
        spelled("[a-z][a-z0-9-]{0,30}", "a lower-case letter, then up to 30 lower-case letters, digits and hyphens")
    ),
]
DatasetName = Annotated[
    str,
    AfterValidator(
        spelled("[a-z0-9][a-z0-9._-]{0,62}", "up to 63 lower-case letters, digits, dots, hyphens and underscores")
    ),
]
RunId = Annotated[
    str, AfterValidator(spelled("[a-z0-9][a-z0-9-]{0,62}", "the id of a run, such as 20260131-183012-base-4f1a"))
]
VariableName = Annotated[
    str,
    AfterValidator(
        spelled("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable: letters, digits and underscores")
    ),
]
ParameterName = Annotated[
    str,
    AfterValidator(spelled("[A-Za-z0-9_./-]{1,1011}", "the name of an SSM parameter: letters, digits and . - _ /")),
]
ContainerImage = Annotated[
    str,
    AfterValidator(
        spelled(
            r"[a-z0-9][\w.:/@-]{0,254}",
            "a reference to a container image, such as nvcr.io/nvidia/pytorch:26.10-py3",
        )
    ),
]
# S3 user guide, "General purpose bucket naming rules". Dots are left out: TLS to such a bucket's own host fails.
BucketName = Annotated[
    str,
    AfterValidator(
        spelled(
            "[a-z0-9][a-z0-9-]{1,61}[a-z0-9]",
            "the name of a bucket: 3 to 63 lower-case letters, digits and hyphens, no hyphen at either end",
        )
    ),
]
ZoneName = Annotated[
    str,
    AfterValidator(
        spelled("[a-z]{2}(-[a-z]+)+-[0-9]+[a-z]?(-[a-z0-9]+-[0-9]+[a-z])?", "an Availability Zone, such as us-east-1a")
    ),
]
ReservationId = Annotated[
    str, AfterValidator(spelled("cr-[0-9a-f]{8,17}", "the id of a capacity reservation, such as cr-0123456789abcdef0"))
]
VpcId = Annotated[str, AfterValidator(spelled("vpc-[0-9a-f]{8,17}", "the id of a VPC, such as vpc-0123456789abcdef0"))]
SubnetId = Annotated[
    str, AfterValidator(spelled("subnet-[0-9a-f]{8,17}", "the id of a subnet, such as subnet-0123456789abcdef0"))
]
KeyArn = Annotated[
    str,
    AfterValidator(
        spelled(
            "arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64}",
            "the ARN of a KMS key, such as arn:aws:kms:us-east-1:123456789012:key/ and the key's id",
        )
    ),
]
PolicyArn = Annotated[
    str,
    AfterValidator(
        spelled(
            r"arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9+=,.@_/-]{1,512}",
            "the ARN of an IAM policy, such as arn:aws:iam::123456789012:policy/boundary",
        )
    ),
]
EmailAddress = Annotated[
    str, AfterValidator(spelled(r"[^@\s]+@[^@\s]+\.[^@\s]+", "an e-mail address, such as team@example.com"))
]
# EC2 user guide, "Tag restrictions"; keys that begin with aws: are AWS's own.
TagKey = Annotated[
    str,
    AfterValidator(
        spelled(
            r"(?!(?i:aws):)[\w\s.:/=+\-@]{1,128}",
            "a tag key: up to 128 letters, digits, spaces and _ . : / = + - @, not beginning with aws:",
        )
    ),
]
TagValue = Annotated[
    str,
    AfterValidator(
        spelled(r"[\w\s.:/=+\-@]{0,256}", "a tag value: up to 256 letters, digits, spaces and _ . : / = + - @")
    ),
]
ImageName = Annotated[
    str,
    AfterValidator(
        spelled(
            "deep-learning|ubuntu-24.04|debian-12|ami-[0-9a-f]{8,17}",
            "deep-learning, ubuntu-24.04, debian-12 or the id of an image such as ami-0123456789abcdef0",
        )
    ),
]
