"""Reading resources and exports from the engine's state."""

from typing import Any

from rehearsal.engine.state import read_exports, read_resources

VPC = "urn:pulumi:s::trainyard::trainyard:infra:Network$aws:ec2/vpc:Vpc::vpc"


def state(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"version": 3, "deployment": {"resources": list(resources)}}


def entry(type_: str, urn: str = VPC, **fields: Any) -> dict[str, Any]:
    return {"urn": urn, "type": type_, "custom": True, **fields}


def test_resource_has_the_registered_fields() -> None:
    created = entry(
        "aws:ec2/vpc:Vpc",
        id="vpc-1",
        inputs={"tags": {"a": "b"}},
        outputs={"arn": "x"},
        retainOnDelete=True,
        importID="vpc-1",
        dependencies=["urn:other"],
    )
    (result,) = read_resources(state(created), {VPC: 1.5}).values()
    assert (result.name, result.id, result.inputs, result.outputs) == (
        "vpc",
        "vpc-1",
        {"tags": {"a": "b"}},
        {"arn": "x"},
    )
    assert (result.retain_on_delete, result.imported, result.exists, result.seconds) == (True, True, True, 1.5)
    assert result.dependencies == {"urn:other"}


def test_stack_and_providers_are_not_resources() -> None:
    internal = [entry("pulumi:pulumi:Stack", "urn:stack"), entry("pulumi:providers:aws", "urn:provider")]
    assert read_resources(state(*internal), {}) == {}


def test_replaced_resource_that_is_pending_deletion_is_skipped() -> None:
    new, old = entry("aws:ec2/vpc:Vpc", id="vpc-2"), entry("aws:ec2/vpc:Vpc", id="vpc-1", delete=True)
    assert [resource.id for resource in read_resources(state(new, old), {}).values()] == ["vpc-2"]


def test_exports_are_the_outputs_of_the_stack() -> None:
    stack = {"urn": "urn:stack", "type": "pulumi:pulumi:Stack", "custom": False, "outputs": {"head": "i-1"}}
    assert read_exports(state(stack)) == {"head": "i-1"}


def test_empty_state_has_no_resources_and_no_exports() -> None:
    empty: dict[str, Any] = {"version": 3, "deployment": {}}
    assert (read_resources(empty, {}), read_exports(empty)) == ({}, {})
