"""The certificate of the agent server: self-signed, for the address of the head, with a new key for each process."""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

# A run is days long at most; each start of the controller creates a new certificate. The clocks of nodes may differ.
VALIDITY, CLOCK_TOLERANCE = timedelta(days=3650), timedelta(days=1)


def create_certificate(address: str) -> tuple[str, str]:
    """Return a certificate for a server at this IP address and its private key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard controller")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), private.decode()


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of a server with this certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # The ssl module reads a private key from a file only: the file has mode 0600 and is deleted at once.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(key + certificate)
        file.flush()
        context.load_cert_chain(Path(file.name))
    return context
