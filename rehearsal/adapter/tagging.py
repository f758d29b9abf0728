"""Tags of what stands, brought from the old inputs to the new ones: by calls of their own, as each service has them."""

from typing import Any

from rehearsal.adapter.handler import Call, tag_list


def retag(call: Call, thing: str = "") -> None:
    """Of a thing of EC2's: by default the one whose id the resource has."""
    put, gone = tag_changes(call)
    ec2, thing = call.aws.client("ec2"), thing or call.id
    if put:
        ec2.create_tags(Resources=[thing], Tags=put)
    if gone:
        ec2.delete_tags(Resources=[thing], Tags=[{"Key": key} for key in gone])


def retag_by(call: Call, tag: Any, untag: Any, **thing: Any) -> None:
    """By a service's own two operations, which name the thing by `thing`."""
    put, gone = tag_changes(call)
    if put:
        tag(**thing, Tags=put)
    if gone:
        untag(**thing, TagKeys=gone)


def tag_changes(call: Call) -> tuple[list[dict[str, str]], list[str]]:
    """Tags to put and keys to take away."""
    olds, news = call.olds.get("tags") or {}, call.inputs.get("tags") or {}
    put = {key: value for key, value in news.items() if olds.get(key) != value}
    return tag_list(put), sorted(olds.keys() - news.keys())
