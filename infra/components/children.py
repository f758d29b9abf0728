"""Options of a component's children, whose names start with the name of the component."""

from typing import Any

import pulumi


def child_options(parent: pulumi.ComponentResource, earlier_name: str, **options: Any) -> pulumi.ResourceOptions:
    """Return the options of a child; `options` are further ones.

    `earlier_name`: its name before names of children contained that of the component. With this alias Pulumi renames
    the resource in the state of an existing stack; otherwise it would replace it.
    """
    return pulumi.ResourceOptions(parent=parent, aliases=[pulumi.Alias(name=earlier_name)], **options)
