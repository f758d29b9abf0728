"""What look-ups of EC2 have in common: filters, tags, and the words for what is not there.

The provider's look-ups fail rather than answer with nothing. Source:
https://github.com/hashicorp/terraform-provider-aws, internal/tfresource/not_found_error.go and the data sources.
"""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.errors import Refused
from rehearsal.adapter.handler import tag_list

Answer = dict[str, Any]


def one_of(found: list[Any], kind: str) -> Any:
    """The only one. Raises Refused as the provider does when there is none, or several."""
    if not found:
        raise Refused(f"no matching {kind} found")
    if len(found) > 1:
        raise Refused(f"multiple {kind}s matched; use additional constraints to reduce matches to a single {kind}")
    return found[0]


def no_resource(type_name: str, identifier: str) -> Refused:
    """What the provider says of a resource that Cloud Control does not find."""
    return Refused(f"reading Cloud Control API ({type_name}) Resource ({identifier}): couldn't find resource")


def no_route_table() -> Refused:
    """What the provider says where no route table matches."""
    return Refused("query returned no results. Please change your search criteria and try again")


def no_image() -> Refused:
    """What the provider says where no image matches."""
    return Refused("Your query returned no results. Please change your search criteria and try again.")


def tags_of(found: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}


def filters_of(given: Mapping[str, Any], **names: str) -> list[tuple[str, list[str]]]:
    """What a look-up asks for, as filters of EC2: its own keys under EC2's names, its filters, its tags."""
    own = [(name, [given[key]]) for key, name in names.items() if given.get(key)]
    own += [(item["name"], item["values"]) for item in given.get("filters", [])]
    return own + [(f"tag:{tag['Key']}", [tag["Value"]]) for tag in tag_list(given.get("tags"))]
