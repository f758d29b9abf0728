"""Two Pulumi projects with a stack of the same name in one account."""

from dataclasses import replace

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.config.project import PROJECT_ROOT, read_project
from trainyard.operations.cluster import Cluster
from trainyard.operations.destroy import audit
from trainyard.operations.stack_reservations import cancel_reservations_of_stack

REGION = "us-east-1"


def test_stack_of_another_project_is_not_deployed(account: EmulatedAws) -> None:
    created = clusters.create_cluster(REGION)
    own = Cluster(created.stack, REGION, project=read_project(PROJECT_ROOT))
    other = Cluster(created.stack, REGION, project=replace(read_project(PROJECT_ROOT), name="other"))
    assert (own.is_deployed, other.is_deployed) == (True, False)


def test_stop_and_audit_ignore_capacity_of_another_project(account: EmulatedAws) -> None:
    created = clusters.create_cluster(REGION)
    created.hold_capacity(1)
    other = Cluster(created.stack, REGION, project=replace(read_project(PROJECT_ROOT), name="other"))
    assert cancel_reservations_of_stack(REGION, other.stack_tag, RecordingDisplay()) == []
    assert not any(audit(other, RecordingDisplay(), 0.0))
    _, remaining = audit(Cluster(created.stack, REGION), RecordingDisplay(), 0.0)
    assert "ec2:capacity-reservation" in {each.kind for each in remaining}
