"""A certificate authority for tests, and an HTTPS server on the loopback interface with a certificate of it."""

import datetime
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def create_authority(folder: Path) -> tuple[Path, Path]:
    """Create a CA and a certificate of 127.0.0.1. Returns the PEM files of the CA, and of the server with its key."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _builder("Test CA", "Test CA", authority_key.public_key())
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    server = _builder("Test CA", HOST, key.public_key())
    server = server.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
    authority_file, server_file = folder / "ca.pem", folder / "server.pem"
    pem = serialization.Encoding.PEM
    authority_file.write_bytes(authority.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server_file.write_bytes(private + server.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    return authority_file, server_file


def _builder(issuer: str, subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (issuer, subject)]
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().issuer_name(names[0]).subject_name(names[1]).public_key(key)
    day = datetime.timedelta(days=1)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)


@contextmanager
def https_server(folder: Path, certificate: Path) -> Iterator[str]:
    """Serve a folder over HTTPS. Yields the URL."""
    with serve_https(partial(_Handler, directory=str(folder)), certificate) as url:
        yield url


@contextmanager
def serve_https(handler: Callable[..., BaseHTTPRequestHandler], certificate: Path) -> Iterator[str]:
    """Handle requests over HTTPS. Yields the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingHTTPServer((HOST, 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"https://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
