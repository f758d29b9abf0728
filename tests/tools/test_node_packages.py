"""The description of the nodes' packages is that of the pinned packages."""

from tools.node_packages import describe_packages
from trainyard.job_source.node_packages import node_packages


def test_node_packages_are_up_to_date() -> None:
    message = "run python -m tools.node_packages > trainyard/job_source/node_packages.json"
    assert describe_packages() == node_packages(), message
