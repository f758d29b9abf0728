"""The digest of a tag from a container registry: a real HTTPS server on the loopback interface."""

import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.tls import create_authority, serve_https
from trainyard.aws.image_digests import MANIFEST_TYPES
from trainyard.operations import container_registry
from trainyard.operations.container_registry import ImageReference, find_digest, parse_image

DIGEST = f"sha256:{'7' * 64}"
TOKEN = "anonymous-token"


@dataclass
class Registry:
    """A registry with the image `team/train:1`. `url`: its address.

    `challenge`: WWW-Authenticate header of requests without the token; None: it requires no token. `failures`: status
    codes of the next responses. `token_status`: that of the token service.
    """

    url: str = ""
    challenge: str | None = None
    failures: deque[int] = field(default_factory=deque)
    token_status: int = 200
    digest: str | None = DIGEST
    accepts: list[str] = field(default_factory=list)
    token_queries: list[dict[str, list[str]]] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.url.removeprefix("https://")

    def image(self, tag: str = "1") -> ImageReference:
        return parse_image(f"{self.host}/team/train:{tag}")

    def require_token(self, parameters: str = "") -> None:
        self.challenge = f'Bearer realm="{self.url}/token"{parameters}'


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, registry: Registry, *args: object) -> None:
        self.registry = registry
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        registry = self.registry
        registry.accepts.append(self.headers["Accept"])
        if registry.failures:
            self._respond(registry.failures.popleft())
        elif registry.challenge is not None and self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._respond(401, {"WWW-Authenticate": registry.challenge})
        elif self.path != "/v2/team/train/manifests/1":
            self._respond(404)
        else:
            self._respond(200, {"Docker-Content-Digest": registry.digest} if registry.digest else {})

    def do_GET(self) -> None:
        self.registry.token_queries.append(parse_qs(urlsplit(self.path).query))
        self._respond(self.registry.token_status, body=f'{{"token": "{TOKEN}"}}')

    def _respond(self, status: int, headers: dict[str, str] | None = None, body: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry whose certificate the system trusts."""
    authority, certificate = create_authority(tmp_path)
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setattr(container_registry, "RETRY_DELAYS_SECONDS", (0.0, 0.0))
    running = Registry()
    with serve_https(partial(_Handler, running), certificate) as url:
        running.url = url
        yield running


@pytest.mark.parametrize(
    ("image", "name", "registry", "repository", "tag"),
    [
        ("ubuntu", "ubuntu", "docker.io", "library/ubuntu", "latest"),
        ("team/train:1", "team/train", "docker.io", "team/train", "1"),
        ("docker.io/ubuntu:24.04", "docker.io/ubuntu", "docker.io", "library/ubuntu", "24.04"),
        ("index.docker.io/a/b", "index.docker.io/a/b", "docker.io", "a/b", "latest"),
        ("nvcr.io/nvidia/pytorch:26.10-py3", "nvcr.io/nvidia/pytorch", "nvcr.io", "nvidia/pytorch", "26.10-py3"),
        ("registry:5000/a", "registry:5000/a", "registry:5000", "a", "latest"),
        ("localhost/a:1", "localhost/a", "localhost", "a", "1"),
    ],
)
def test_references_have_the_defaults_of_docker(
    image: str, name: str, registry: str, repository: str, tag: str
) -> None:
    assert parse_image(image) == ImageReference(name, registry, repository, tag)


def test_images_of_docker_are_in_its_registry() -> None:
    assert parse_image("ubuntu").api_host == "registry-1.docker.io"


def test_digest_of_a_tag(registry: Registry) -> None:
    assert find_digest(registry.image()) == DIGEST
    assert registry.accepts == [", ".join(MANIFEST_TYPES)]


def test_token_is_requested_for_service_and_scope_of_the_registry(registry: Registry) -> None:
    registry.require_token(',service="a b",scope="repository:team/train:pull,push"')
    assert find_digest(registry.image()) == DIGEST
    assert registry.token_queries == [{"service": ["a b"], "scope": ["repository:team/train:pull,push"]}]


def test_token_for_pulls_is_requested_where_the_registry_names_no_scope(registry: Registry) -> None:
    registry.require_token()
    assert find_digest(registry.image()) == DIGEST
    assert registry.token_queries == [{"scope": ["repository:team/train:pull"]}]


def test_missing_tag_is_a_lookup_error(registry: Registry) -> None:
    registry.require_token()
    with pytest.raises(LookupError, match="no such image or tag"):
        find_digest(registry.image("2"))


@pytest.mark.parametrize("challenge", ['Basic realm="registry"', "", 'Bearer realm="http://127.0.0.1:1/token"'])
def test_other_method_than_a_token_is_a_permission_error(registry: Registry, challenge: str) -> None:
    registry.challenge = challenge
    with pytest.raises(PermissionError, match="requires a login"):
        find_digest(registry.image())


@pytest.mark.parametrize("status", [401, 403])
def test_denied_token_is_a_permission_error(registry: Registry, status: int) -> None:
    registry.require_token()
    registry.token_status = status
    with pytest.raises(PermissionError, match=f"token.*: status {status}"):
        find_digest(registry.image())


def test_token_without_permission_is_a_permission_error(registry: Registry) -> None:
    registry.failures.append(403)
    with pytest.raises(PermissionError, match="status 403"):
        find_digest(registry.image())


@pytest.mark.parametrize("digest", [None, "sha256:short"])
def test_response_without_digest_is_an_error(registry: Registry, digest: str | None) -> None:
    registry.digest = digest
    with pytest.raises(OSError, match="the response has no valid digest"):
        find_digest(registry.image())


def test_request_is_repeated_when_the_registry_is_overloaded(registry: Registry) -> None:
    registry.failures.extend([503, 429])
    assert find_digest(registry.image()) == DIGEST


def test_requests_end_after_three_tries(registry: Registry) -> None:
    registry.failures.extend([503] * 4)
    with pytest.raises(OSError, match="status 503"):
        find_digest(registry.image())
    assert len(registry.accepts) == 3


def test_untrusted_certificate_is_an_error(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(OSError, match="certificate verify failed"):
        find_digest(registry.image())


def test_proxy_of_the_environment_is_used(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(OSError, match="refused"):
            find_digest(registry.image())
    assert registry.accepts == []
