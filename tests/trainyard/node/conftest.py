"""A node whose init process replaces systemd for programs that run in the process of the tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.process.backend import ProcessBackend
from tests.polling import eventually


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Root folder of a booted node of the process backend."""
    with ProcessBackend(tmp_path_factory.mktemp("node")) as backend:
        spec = NodeSpec(
            id="i-1", address="127.0.0.1", user_data="#cloud-config\n{}", metadata_endpoint="", environment={}
        )
        backend.boot(spec)
        root = backend.root("i-1")
        eventually((root / "run/init").exists, "the init process")
        yield root


@pytest.fixture
def systemd(booted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of systemd for the process of the test."""
    monkeypatch.setenv("TRAINYARD_ROOT", str(booted))
    monkeypatch.setenv("PATH", f"{booted}/usr/bin:{os.environ['PATH']}")
