"""The CA certificates that nodes trust in addition to those of their image: `node.ca_certificate`."""

import ssl
from pathlib import Path

_HEADER = "-----BEGIN CERTIFICATE-----"


def read_ca_certificate(value: str | None, root: Path) -> str | None:
    """Return the PEM text of `node.ca_certificate`: its value, or the content of that file; None without a value.

    `root`: folder of Pulumi.yaml. Raises ValueError with the reason if it is neither.
    """
    if value is None:
        return None
    text = value
    if _HEADER not in value:
        file = root / value
        try:
            text = file.read_text(encoding="ascii")
        except OSError as error:
            raise ValueError(f"{file} is not readable: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{file} is not a PEM file") from None
    if "PRIVATE KEY-----" in text:
        raise ValueError("contains a private key, and every node and the manifest would contain it")
    try:
        ssl.create_default_context().load_verify_locations(cadata=text[text.index(_HEADER) :])
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"contains no valid certificate in PEM format: {error}") from None
    return text.strip()
