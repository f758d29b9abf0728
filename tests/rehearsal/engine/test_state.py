"""The engine's state as the graph that the rest of a rehearsal reads."""

from typing import Any

from rehearsal.engine.state import exports_of, resources_of

VPC = "urn:pulumi:s::trainyard::trainyard:infra:Network$aws:ec2/vpc:Vpc::vpc"


def state(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"version": 3, "deployment": {"resources": list(resources)}}


def entry(type_: str, urn: str = VPC, **more: Any) -> dict[str, Any]:
    return {"urn": urn, "type": type_, "custom": True, **more}


def test_resource_is_there_as_the_program_registered_it() -> None:
    made = entry(
        "aws:ec2/vpc:Vpc",
        id="vpc-1",
        inputs={"tags": {"a": "b"}},
        outputs={"arn": "x"},
        retainOnDelete=True,
        importID="vpc-1",
        dependencies=["urn:other"],
    )
    (found,) = resources_of(state(made), {VPC: 1.5}).values()
    assert (found.name, found.id, found.inputs, found.outputs) == ("vpc", "vpc-1", {"tags": {"a": "b"}}, {"arn": "x"})
    assert (found.retain_on_delete, found.adopted, found.made, found.seconds) == (True, True, True, 1.5)
    assert found.dependencies == {"urn:other"}


def test_what_is_the_engines_own_is_left_out() -> None:
    own = [entry("pulumi:pulumi:Stack", "urn:stack"), entry("pulumi:providers:aws", "urn:provider")]
    assert resources_of(state(*own), {}) == {}


def test_what_a_replacement_left_to_delete_is_not_the_resource() -> None:
    new, old = entry("aws:ec2/vpc:Vpc", id="vpc-2"), entry("aws:ec2/vpc:Vpc", id="vpc-1", delete=True)
    assert [one.id for one in resources_of(state(new, old), {}).values()] == ["vpc-2"]


def test_exports_are_the_stacks_outputs() -> None:
    stack = {"urn": "urn:stack", "type": "pulumi:pulumi:Stack", "custom": False, "outputs": {"head": "i-1"}}
    assert exports_of(state(stack)) == {"head": "i-1"}


def test_state_of_a_stack_that_made_nothing_is_empty() -> None:
    nothing: dict[str, Any] = {"version": 3, "deployment": {}}
    assert (resources_of(nothing, {}), exports_of(nothing)) == ({}, {})
