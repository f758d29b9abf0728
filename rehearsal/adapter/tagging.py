"""Updates the tags of existing resources from the old inputs to the new inputs, with each service's tagging calls."""

from typing import Any

from rehearsal.adapter.handler import HandlerCall, tag_list


def update_ec2_tags(call: HandlerCall, resource_id: str = "") -> None:
    """Update the tags of an EC2 resource: of `resource_id`, by default `call.id`."""
    put, removed = diff_tags(call)
    ec2, resource_id = call.aws.client("ec2"), resource_id or call.id
    if put:
        ec2.create_tags(Resources=[resource_id], Tags=put)
    if removed:
        ec2.delete_tags(Resources=[resource_id], Tags=[{"Key": key} for key in removed])


def update_tags(call: HandlerCall, tag: Any, untag: Any, **resource: Any) -> None:
    """Update tags with a service's `tag` and `untag` operations. `resource`: the argument that names the resource."""
    put, removed = diff_tags(call)
    if put:
        tag(**resource, Tags=put)
    if removed:
        untag(**resource, TagKeys=removed)


def diff_tags(call: HandlerCall) -> tuple[list[dict[str, str]], list[str]]:
    """Return the tags to put and the tag keys to remove."""
    old_tags, new_tags = call.old_inputs.get("tags") or {}, call.inputs.get("tags") or {}
    put = {key: value for key, value in new_tags.items() if old_tags.get(key) != value}
    return tag_list(put), sorted(old_tags.keys() - new_tags.keys())
