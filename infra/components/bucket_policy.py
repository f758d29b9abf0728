"""Statements of bucket policies. All deny: the roles of the nodes have the permissions."""

import pulumi

from infra.components.statements import Statement
from infra.scope import Scope
from trainyard.models.layout import EXPORTS

_WRITES = ["s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject", "s3:DeleteObjectVersion"]


def require_tls(bucket_arn: pulumi.Input[str]) -> Statement:
    """Return the statement that denies requests without TLS."""
    return {
        "Sid": "RequireTls",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [bucket_arn, pulumi.Output.concat(bucket_arn, "/*")],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def limit_fsx_exports(bucket_arn: pulumi.Input[str], scope: Scope) -> Statement:
    """Return the statement by which FSx for Lustre writes and deletes below `exports/` only.

    An association without an export policy is not enough: root on a node exports any file below a linked path with
    `lfs hsm_archive`, and FSx writes the object with its own role, not with the role of the node. Sources:
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/exporting-files-hsm.html (HSM commands),
    https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-service-linked-roles.html (the role of each file system).
    A condition names the role: S3 refuses a policy with a principal that does not exist.
    """
    path = f"role/aws-service-role/s3.data-source.lustre.fsx.{scope.dns_suffix}/AWSServiceRoleForFSxS3Access_*"
    return {
        "Sid": "LimitFsxExports",
        "Effect": "Deny",
        "Principal": "*",
        "Action": _WRITES,
        "NotResource": [pulumi.Output.concat(bucket_arn, "/", EXPORTS, "*")],
        "Condition": {"ArnLike": {"aws:PrincipalArn": f"arn:{scope.partition}:iam::{scope.account}:{path}"}},
    }
