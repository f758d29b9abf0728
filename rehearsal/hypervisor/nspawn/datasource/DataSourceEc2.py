"""cloud-init's EC2 datasource for a container.

cloud-init identifies AWS by DMI data, which a container does not have. Here the platform is always AWS, so that
cloud-init requests IMDSv2 session tokens as on AWS. The datasource depends on the network, and replaces that of the
stage before it, which would wait a minute for a DHCP server.
"""

# ruff: noqa: N813, N999 (cloud-init requires the name of the module)

from typing import Any

from cloudinit import sources
from cloudinit.sources import DataSourceEc2 as ec2

ec2.identify_platform = lambda: ec2.CloudNames.AWS
# If this module has none for a stage, cloud-init uses those of the module that it replaces.
ec2.datasources = [(ec2.DataSourceEc2, (sources.DEP_FILESYSTEM, sources.DEP_NETWORK))]


def get_datasource_list(depends: list[str]) -> Any:
    """Return the datasources for a stage of cloud-init, which calls this with the dependencies of the stage."""
    return sources.list_from_depends(depends, ec2.datasources)
