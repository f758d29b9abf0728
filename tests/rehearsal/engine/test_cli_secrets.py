"""Pulumi secrets in the settings, with the real Pulumi CLI. Skipped when the CLI is not on PATH."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.rehearsal.engine.test_cli import Stack, create_stack, requires_cli

pytestmark = requires_cli
PLANTED = "planted-secret-value"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with create_stack(tmp_path, "local") as created:
        yield created


def set_secret(stack: Stack, key: str) -> None:
    """Encrypt the planted value in the stack file, as a user does."""
    stack.workspace.run_command("config", "set", "--secret", "--path", key, PLANTED, "--stack", "local")
    stack.config = yaml.safe_load((stack.workspace.folder / "Pulumi.local.yaml").read_text())["config"]


def test_encrypted_setting_is_refused_before_any_resource(stack: Stack) -> None:
    set_secret(stack, "trainyard:cluster.job.environment.TOKEN")
    shutil.copy(stack.workspace.folder / "Pulumi.local.yaml", stack.tree / "stacks")
    ((_, error),) = stack.run("up").errors
    assert "trainyard:cluster.job.environment.TOKEN: a Pulumi secret" in error
    assert "job.secrets" in error
    assert stack.events == []
    assert PLANTED not in json.dumps(stack.workspace.export_state())


def test_decrypted_setting_of_an_environment_is_refused(stack: Stack) -> None:
    """The program refuses what the engine marks as a secret, also if the stack file does not contain it."""
    set_secret(stack, "trainyard:cluster.job.environment.TOKEN")  # the file in `stacks` has no secret
    ((_, error),) = stack.run("up").errors
    assert "trainyard:cluster: a Pulumi secret" in error
    assert PLANTED not in error
