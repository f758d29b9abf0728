"""DescribeInstanceTopology: the network nodes above each running instance, from the top of the network to the bottom.

Sources: API reference, DescribeInstanceTopology; EC2 user guide, "Prerequisites for Amazon EC2 topology" and "How
Amazon EC2 topology works". Assumptions: the shape of the network, and the codes of errors.
"""

import hashlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from rehearsal.aws.moto_extension import ec2_error, extend

MAX_IDS, DEFAULT_RESULTS, MAX_RESULTS = 100, 20, 100
_FOUR_LAYERS = re.compile(r"p6-b[23]00\.48xlarge")
_THREE_LAYERS = re.compile(
    r"g6e\.\d*xlarge|g7e\.(2|4|8|12|24|48)xlarge"
    r"|hpc(6a\.48|6id\.32|7g\.(4|8|16)|7a\.(12|24|48|96)|8a\.96)xlarge"
    r"|(p3dn|p4d|p4de)\.24xlarge|p5(e|en)?\.48xlarge|p6e-gb200\.36xlarge"
    r"|trn1\.(2|32)xlarge|trn1n\.32xlarge|trn2u?\.48xlarge"
)
_CHILDREN = 4  # nodes below each node, of which an instance's id selects one
_FILTERS = frozenset(["availability-zone", "instance-type", "zone-id"])


def network_nodes(instance: Any) -> list[str]:
    """Return the network nodes of an instance; empty unless it is running and its type is supported."""
    name = instance.instance_type
    layers = 4 if _FOUR_LAYERS.fullmatch(name) else 3 if _THREE_LAYERS.fullmatch(name) else 0
    if instance.state != "running" or not layers:
        return []
    path, digest = [instance.availability_zone], hashlib.sha256(instance.id.encode()).digest()
    for layer in range(layers):
        path.append(str(digest[layer] % _CHILDREN) if layer else "top")
    return [_node_id("/".join(path[: layer + 2])) for layer in range(layers)]


def _node_id(path: str) -> str:
    return f"nn-{hashlib.sha256(path.encode()).hexdigest()[:17]}"


def describe_instance_topology(self: Any) -> ActionResult:
    """Describe instances by id, or page through those of the region; `Filters` and `GroupNames` select."""
    self.error_on_dryrun()
    ids, groups = self._get_param("InstanceIds", []), self._get_param("GroupNames", [])
    limit, token = self._get_param("MaxResults"), self._get_param("NextToken")
    for kind, names in (("instance IDs", ids), ("placement group names", groups)):
        if len(names) > MAX_IDS:
            raise ec2_error("InvalidParameterValue", f"The maximum number of {kind} is {MAX_IDS}.")
    if ids and limit is not None:
        raise ec2_error(
            "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults"
        )
    count = int(limit or DEFAULT_RESULTS)
    if not 1 <= count <= MAX_RESULTS:
        raise ec2_error("InvalidParameterValue", f"Value ( {count} ) for parameter maxResults is invalid.")
    backend = self.ec2_backend
    instances = [backend.get_instance(name) for name in ids] if ids else list(backend.all_instances())
    matches = [_description(backend, each) for each in instances if _is_selected(self, backend, each, groups)]
    start = int(token or 0)
    end = len(matches) if ids else start + count
    following = {"NextToken": str(end)} if end < len(matches) else {}
    return ActionResult({"Instances": matches[start:end], **following})


def _is_selected(response: Any, backend: Any, instance: Any, groups: list[str]) -> bool:
    if instance.state == "terminated" or (groups and instance.placement.group_name not in groups):
        return False
    fields = _description(backend, instance)
    values = {
        "availability-zone": fields["AvailabilityZone"],
        "instance-type": fields["InstanceType"],
        "zone-id": fields["ZoneId"],
    }
    return all(any(fnmatchcase(values[name], pattern) for pattern in patterns) for name, patterns in _filters(response))


def _filters(response: Any) -> Iterator[tuple[str, list[str]]]:
    for name, patterns in response._filters_from_querystring().items():
        if name not in _FILTERS:
            raise ec2_error("InvalidParameterValue", f"The filter '{name}' is invalid")
        yield name, patterns


def _description(backend: Any, instance: Any) -> dict[str, Any]:
    zone = next(each for each in backend.describe_availability_zones() if each.name == instance.availability_zone)
    return {
        "InstanceId": instance.id,
        "InstanceType": instance.instance_type,
        "GroupName": instance.placement.group_name or None,
        "NetworkNodes": network_nodes(instance),
        "AvailabilityZone": zone.name,
        "ZoneId": zone.zone_id,
    }


def install() -> None:
    """Add the operation to moto."""
    extend(EC2Response, describe_instance_topology)
