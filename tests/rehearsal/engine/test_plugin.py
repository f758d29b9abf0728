"""Settings for the pulumi-aws plugin. The CLI in these tests is a script without effect: no plugin runs."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from pulumi_aws import ProviderEndpointArgsDict

from rehearsal import adapter
from rehearsal.context import Context
from rehearsal.engine.plugin import plugin_engine, services
from trainyard.config.project import PROJECT_ROOT, read_project

ENDPOINT = "http://127.0.0.1:4"
CLIENT = re.compile(r"\.client\(\"([a-z0-9-]+)\"\)")
PULUMI = '#!/bin/sh\nPATH=/usr/bin:/bin\nenv > "$(dirname "$0")/environment"\n'


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    cli = tmp_path / "bin" / "pulumi"
    cli.parent.mkdir()
    for name in ("pulumi", "pulumi-resource-command"):
        (cli.parent / name).write_text(PULUMI)
        (cli.parent / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(cli.parent))
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    parts = SimpleNamespace(
        options=SimpleNamespace(project=read_project(PROJECT_ROOT), folder=tmp_path, stack="s"),
        config={"aws:region": "us-west-2", "trainyard:cluster": {"nodes": 2}},
        aws=SimpleNamespace(endpoint=ENDPOINT, region="us-west-2"),
    )
    return cast(Context, parts)


@pytest.fixture
def config(context: Context) -> dict[str, Any]:
    """The stack's settings that a preview writes."""
    with plugin_engine(context) as engine:
        engine.preview()
    settings: dict[str, Any] = yaml.safe_load((context.options.folder / "pulumi" / "Pulumi.s.yaml").read_text())[
        "config"
    ]
    return settings


def test_every_service_has_the_endpoint_of_the_emulated_account(config: dict[str, Any]) -> None:
    (endpoints,) = config["aws:endpoints"]
    assert set(endpoints) == set(services())
    assert set(endpoints.values()) == {ENDPOINT}


def test_services_are_endpoint_keys_of_the_provider() -> None:
    assert set(services()) <= set(ProviderEndpointArgsDict.__annotations__)


def test_services_equal_the_services_that_the_adapter_calls() -> None:
    sources = [file.read_text() for file in Path(adapter.__path__[0]).glob("*.py")]
    called = {service.replace("-", "") for source in sources for service in CLIENT.findall(source)}
    assert set(services()) == called


def test_settings_of_the_stack_are_kept(config: dict[str, Any]) -> None:
    assert config["trainyard:cluster"] == {"nodes": 2}
    assert config["aws:region"] == "us-west-2"


def test_settings_use_path_style_and_skip_calls_to_the_real_aws(config: dict[str, Any]) -> None:
    assert all(config[f"aws:{key}"] for key in ("s3UsePathStyle", "skipCredentialsValidation", "skipMetadataApiCheck"))


def test_account_id_is_requested_because_arns_contain_it(config: dict[str, Any]) -> None:
    assert "aws:skipRequestingAccountId" not in config


def test_no_provider_of_the_rehearsal_is_attached(context: Context, config: dict[str, Any]) -> None:
    described = (context.options.folder / "bin" / "environment").read_text().splitlines()
    assert "PULUMI_DEBUG_PROVIDERS=" in described
    assert f"AWS_ENDPOINT_URL={ENDPOINT}" in described


def test_report_lists_the_check_that_is_skipped(context: Context) -> None:
    with plugin_engine(context) as engine:
        assert engine.check_calls({"urn:a": "a"}, []) == []
        (described,) = engine.substitutions()
    assert described.original == "the check that each created resource has an API call in the account's journal"
