"""What the rehearsal uses of Pulumi's Python SDK beyond its public API: another version of the SDK may change it."""

import inspect
from typing import Any

import pytest
from pulumi.runtime import config, mocks, rpc, settings, stack, sync_await
from pulumi.runtime.proto import resource_pb2

PARAMETERS = [
    (mocks.set_mocks, ["mocks", "project", "stack", "preview", "logger", "monitor"]),
    (mocks.MockMonitor.make_urn, ["parent", "type_", "name"]),
    (settings.set_root_resource, ["root"]),
    (config.set_all_config, ["config"]),
    (config.is_config_secret, ["k"]),
    (stack.run_in_stack, ["func"]),
    (sync_await._sync_await, ["awaitable"]),
    (rpc.serialize_properties, ["inputs", "property_deps"]),
    (rpc.deserialize_properties, ["props_struct"]),
]


@pytest.mark.parametrize(("function", "names"), PARAMETERS, ids=lambda value: getattr(value, "__name__", ""))
def test_function_has_the_parameters(function: Any, names: list[str]) -> None:
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    assert [name for name in names if name not in parameters] == []


def test_outputs_of_a_run_can_be_cleared() -> None:
    assert hasattr(settings.SETTINGS.outputs, "clear")


@pytest.mark.parametrize("kind", ["key", "archive_sig", "resource_sig", "output_value_sig", "secret_sig", "asset_sig"])
def test_signatures_of_special_values_exist(kind: str) -> None:
    name = "_special_sig_key" if kind == "key" else f"_special_{kind}"
    assert isinstance(getattr(rpc, name), str)


@pytest.mark.parametrize("field", ["aliases", "customTimeouts", "deleteBeforeReplace", "ignoreChanges", "importId"])
def test_request_has_the_options_of_a_resource(field: str) -> None:
    assert field in resource_pb2.RegisterResourceRequest.DESCRIPTOR.fields_by_name
