"""What the CLI is given with pulumi-aws's own plugin. The CLI here is a script that does nothing: no plugin has run."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pulumi_aws import ProviderEndpointArgsDict

from rehearsal import adapter
from rehearsal.context import Scene
from rehearsal.engine.plugin import plugin, services
from rehearsal.workspace import ROOT

ENDPOINT = "http://127.0.0.1:4"
CLIENT = re.compile(r"\.client\(\"([a-z0-9-]+)\"\)")
PULUMI = '#!/bin/sh\nPATH=/usr/bin:/bin\nenv > "$(dirname "$0")/environment"\n'


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    cli = tmp_path / "bin" / "pulumi"
    cli.parent.mkdir()
    for name in ("pulumi", "pulumi-resource-command"):
        (cli.parent / name).write_text(PULUMI)
        (cli.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(cli.parent))
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    parts = SimpleNamespace(
        options=SimpleNamespace(root=ROOT, folder=tmp_path, stack="s"),
        config={"aws:region": "us-west-2", "trainyard:cluster": {"nodes": 2}},
        aws=SimpleNamespace(endpoint=ENDPOINT, region="us-west-2"),
    )
    return cast(Scene, parts)


@pytest.fixture
def config(scene: Scene) -> dict[str, Any]:
    """The stack's settings as a preview lays them out."""
    with plugin(scene) as engine:
        engine.preview()
    laid_out: dict[str, Any] = yaml.safe_load((scene.options.folder / "pulumi" / "Pulumi.s.yaml").read_text())["config"]
    return laid_out


def test_every_service_is_led_to_the_emulated_account(config: dict[str, Any]) -> None:
    (endpoints,) = config["aws:endpoints"]
    assert set(endpoints) == set(services())
    assert set(endpoints.values()) == {ENDPOINT}


def test_services_are_keys_that_the_provider_knows() -> None:
    assert set(services()) <= set(ProviderEndpointArgsDict.__annotations__)


def test_services_are_those_that_the_adapter_calls() -> None:
    sources = [file.read_text() for file in Path(adapter.__path__[0]).glob("*.py")]
    called = {service.replace("-", "") for source in sources for service in CLIENT.findall(source)}
    assert set(services()) == called


def test_settings_of_the_stack_stay_beside_them(config: dict[str, Any]) -> None:
    assert config["trainyard:cluster"] == {"nodes": 2}
    assert config["aws:region"] == "us-west-2"


def test_buckets_go_by_path_and_nothing_is_asked_of_the_real_aws(config: dict[str, Any]) -> None:
    assert all(config[f"aws:{key}"] for key in ("s3UsePathStyle", "skipCredentialsValidation", "skipMetadataApiCheck"))


def test_account_id_is_asked_for_since_arns_carry_it(config: dict[str, Any]) -> None:
    assert "aws:skipRequestingAccountId" not in config


def test_provider_of_the_rehearsal_is_not_attached(scene: Scene, config: dict[str, Any]) -> None:
    told = (scene.options.folder / "bin" / "environment").read_text().splitlines()
    assert "PULUMI_DEBUG_PROVIDERS=" in told
    assert f"AWS_ENDPOINT_URL={ENDPOINT}" in told


def test_report_says_which_check_is_left_out(scene: Scene) -> None:
    with plugin(scene) as engine:
        assert engine.check_calls({"urn:a": "a"}, []) == []
        (told,) = engine.scaled()
    assert told.what == "the check that each resource made owns a call in the account's journal"
