"""cloud-init's EC2 datasource on a machine without DMI, which is how it knows AWS: told here that it is AWS, it asks
for session tokens as it does there. Only once the network is up: the earlier stage would run a DHCP client."""

from typing import Any

from cloudinit import sources
from cloudinit.sources import DataSourceEc2 as ec2

ec2.identify_platform = lambda: ec2.CloudNames.AWS


def get_datasource_list(depends: list[str]) -> Any:
    """Called by cloud-init with what a stage offers."""
    needs = (sources.DEP_FILESYSTEM, sources.DEP_NETWORK)
    return sources.list_from_depends(depends, [(ec2.DataSourceEc2, needs)])
