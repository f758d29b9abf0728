"""The CA certificates that boto3 trusts: those of the environment or of the system, as Pulumi and the AWS CLI do."""

import os
import ssl
from pathlib import Path

# botocore reads these two itself, and only these: the other two are those of OpenSSL, Go, uv and curl.
_BOTOCORE_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_SYSTEM_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trusted_certificates() -> str | None:
    """Return the file of trusted CA certificates for boto3.

    None: AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE names it, or the system has none, and botocore uses its own.
    """
    if any(os.environ.get(name) for name in _BOTOCORE_VARIABLES):
        return None
    files = (os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *_SYSTEM_FILES)
    return next((file for file in files if file and Path(file).is_file()), None)
