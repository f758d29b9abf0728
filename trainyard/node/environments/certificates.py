"""CA certificates of the stack (`node.ca_certificate`), such as that of a proxy that intercepts TLS.

Standard library only: they are installed before the first package. On a machine they become part of the system's
certificates. The variables name one file with all certificates for programs that do not read those of the system: pip,
boto3, and on a node that is a folder all programs.
"""

import shutil
import subprocess
from pathlib import Path

from trainyard.node.bootstrap import BASE, ROOT, BootstrapError

CERTIFICATES = BASE / "ca-certificates.pem"
VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # Debian and Ubuntu
_ANCHOR = Path("/usr/local/share/ca-certificates/trainyard.crt")
_ENVIRONMENT = ROOT / "etc/trainyard/environment.d/ca-certificates.conf"  # read by the unit of the agent


def install_certificate(certificate: str | None) -> dict[str, str]:
    """Trust a certificate, PEM; None: only the system's. Returns the variables for programs that are started next.

    Raises BootstrapError if the system's certificates cannot be updated.
    """
    if certificate is None:
        for file in (CERTIFICATES, _ENVIRONMENT):
            file.unlink(missing_ok=True)
        if str(ROOT) == "/" and _ANCHOR.exists():
            _update_system(None)
        return {}
    if str(ROOT) == "/":
        _update_system(certificate)
    system = SYSTEM_CERTIFICATES.read_text() if SYSTEM_CERTIFICATES.exists() else ""
    CERTIFICATES.write_text(f"{system}\n{certificate}\n")
    variables = dict.fromkeys(VARIABLES, str(CERTIFICATES))
    _ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    _ENVIRONMENT.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    return variables


def _update_system(certificate: str | None) -> None:
    """Add the certificate to the system's certificates, or remove it."""
    program = shutil.which("update-ca-certificates")
    if program is None:
        raise BootstrapError("node.ca_certificate needs update-ca-certificates: use an image with ca-certificates")
    if certificate is None:
        _ANCHOR.unlink()
    else:
        _ANCHOR.parent.mkdir(parents=True, exist_ok=True)
        _ANCHOR.write_text(f"{certificate}\n")
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    if result.returncode:
        raise BootstrapError(f"update-ca-certificates ended with {result.returncode}: {result.stderr.strip()}")
