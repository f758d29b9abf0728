"""The OCI distribution API of a container registry: the digest of a tag, as nodes read it, without a login.

Sources: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pull, and for tokens
https://distribution.github.io/distribution/spec/auth/token/
"""

import json
import re
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, parse_http_list, parse_keqv_list, urlopen

from trainyard.aws.certificates import trusted_certificates
from trainyard.aws.image_digests import MANIFEST_TYPES

TIMEOUT_SECONDS = 15.0
RETRY_DELAYS_SECONDS = (1.0, 4.0)
MAX_RESPONSE_BYTES = 1 << 20
DOCKER_HUB = "docker.io"
_DOCKER_HUB_API = "registry-1.docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True)
class ImageReference:
    """A reference to an image by tag. `name`: without tag, as the user has written it."""

    name: str
    registry: str
    repository: str
    tag: str

    @property
    def api_host(self) -> str:
        """Host of the registry's API."""
        return _DOCKER_HUB_API if self.registry == DOCKER_HUB else self.registry


@dataclass(frozen=True)
class _Response:
    status: int
    headers: Message
    body: bytes


def parse_image(image: str) -> ImageReference:
    """Parse a reference without digest, with the defaults of Docker: its own registry, `library/` and tag `latest`.

    Source: https://github.com/distribution/reference/blob/v0.6.0/normalize.go
    """
    name, separator, tag = image.rpartition(":")
    if not separator or "/" in tag:  # the colon, if any, is that of a port
        name, tag = image, "latest"
    registry, separator, repository = name.partition("/")
    if not separator or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, repository = DOCKER_HUB, name
    if registry == f"index.{DOCKER_HUB}":
        registry = DOCKER_HUB
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    return ImageReference(name, registry, repository, tag)


def find_digest(image: ImageReference) -> str:
    """Return the digest of the tag's manifest: of the index, if the image has several platforms.

    Raises LookupError if the tag does not exist, PermissionError if the registry requires a login, and OSError if it
    does not respond or returns no digest.
    """
    url = f"https://{image.api_host}/v2/{image.repository}/manifests/{image.tag}"
    headers = {"Accept": ", ".join(MANIFEST_TYPES)}
    response = _send("HEAD", url, headers)
    if response.status == HTTPStatus.UNAUTHORIZED:
        token = _fetch_token(image, response.headers.get_all("WWW-Authenticate") or ())
        response = _send("HEAD", url, {**headers, "Authorization": f"Bearer {token}"})
    if response.status == HTTPStatus.NOT_FOUND:
        raise LookupError(f"{image.api_host} has no such image or tag")
    _require_success(response, url)
    digest = str(response.headers.get("Docker-Content-Digest", ""))
    if not _DIGEST.fullmatch(digest):
        raise OSError(f"{url}: the response has no valid digest: {digest!r}")
    return digest


def _fetch_token(image: ImageReference, challenges: Iterable[str]) -> str:
    """Return a token for anonymous pulls, from the service that a challenge of the registry names."""
    for challenge in challenges:
        scheme, _, parameters = challenge.partition(" ")
        values = parse_keqv_list(parse_http_list(parameters)) if scheme.lower() == "bearer" else {}
        if values.get("realm", "").startswith("https://"):
            break
    else:
        raise PermissionError(f"{image.api_host} requires a login")
    query = {"scope": values.get("scope", f"repository:{image.repository}:pull")}
    if "service" in values:
        query["service"] = values["service"]
    url = f"{values['realm']}{'&' if '?' in values['realm'] else '?'}{urlencode(query)}"
    response = _send("GET", url, {})
    _require_success(response, url)
    try:
        content = json.loads(response.body)
        return str(content.get("token") or content["access_token"])
    except (ValueError, KeyError, AttributeError):
        raise OSError(f"{url}: the response has no token") from None


def _require_success(response: _Response, url: str) -> None:
    if response.status in _DENIED:
        raise PermissionError(f"{url}: status {response.status}")
    if response.status != HTTPStatus.OK:
        raise OSError(f"{url}: status {response.status}")


def _send(method: str, url: str, headers: Mapping[str, str]) -> _Response:
    """Send a request, again if the server does not respond or is overloaded. Raises OSError after the last try.

    Proxies are those of the environment, trusted certificates those of boto3.
    """
    request = Request(url, method=method, headers={"User-Agent": "trainyard", **headers})  # noqa: S310
    context = ssl.create_default_context(cafile=trusted_certificates())
    for delay in (*RETRY_DELAYS_SECONDS, None):
        try:
            with urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as response:  # noqa: S310
                return _Response(response.status, response.headers, response.read(MAX_RESPONSE_BYTES))
        except HTTPError as error:
            is_temporary = error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
            if delay is None or not is_temporary:
                return _Response(error.code, error.headers, b"")
        except (OSError, HTTPException) as error:
            if delay is None:
                raise OSError(f"{url}: {getattr(error, 'reason', error)}") from None
        time.sleep(delay)
    raise AssertionError("the last try returns or raises")
