"""Helpers of the EC2 lookups: filters, tags, and the errors for missing resources.

The provider's lookups fail when nothing matches. Source of the messages:
https://github.com/hashicorp/terraform-provider-aws, internal/tfresource/not_found_error.go and the data sources.
"""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.errors import RequestFailedError

LookupResult = dict[str, Any]


def single_match(matches: list[Any], kind: str) -> Any:
    """Return the only match. Raises RequestFailedError with the provider's message for no match or several."""
    if not matches:
        raise RequestFailedError(f"no matching {kind} found")
    if len(matches) > 1:
        raise RequestFailedError(
            f"multiple {kind}s matched; use additional constraints to reduce matches to a single {kind}"
        )
    return matches[0]


def missing_resource_error(type_name: str, identifier: str) -> RequestFailedError:
    """Return the provider's error for a resource that Cloud Control does not find."""
    return RequestFailedError(
        f"reading Cloud Control API ({type_name}) Resource ({identifier}): couldn't find resource"
    )


def missing_object_error(bucket: str, key: str) -> RequestFailedError:
    """Return the provider's error for an S3 object that does not exist."""
    return RequestFailedError(f"reading S3 Bucket ({bucket}) Object ({key}): couldn't find resource")


def missing_budget_error() -> RequestFailedError:
    """Return the provider's error for a budget that does not exist."""
    return RequestFailedError("reading Budgets Budget Data Source (): couldn't find resource")


def missing_route_table_error() -> RequestFailedError:
    """Return the provider's error when no route table matches."""
    return RequestFailedError("query returned no results. Please change your search criteria and try again")


def missing_image_error() -> RequestFailedError:
    """Return the provider's error when no image matches."""
    return RequestFailedError("Your query returned no results. Please change your search criteria and try again.")


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource as EC2 describes it."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def ec2_filters(arguments: Mapping[str, Any], **names: str) -> list[dict[str, Any]]:
    """Return the EC2 filters of a lookup: from its own arguments, renamed by `names`, and from its `filters`."""
    filters = [{"Name": name, "Values": [arguments[key]]} for key, name in names.items() if arguments.get(key)]
    return filters + [{"Name": item["name"], "Values": item["values"]} for item in arguments.get("filters", [])]
