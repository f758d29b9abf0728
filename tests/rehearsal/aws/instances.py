"""Records of emulated instances: those of an account, and examples."""

from typing import Any

from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.process import EmulatedAws


def instance_record(aws: EmulatedAws, instance: str) -> InstanceRecord:
    """Return the record of an instance of the account."""
    return next(record for record in aws.instances() if record.id == instance)


def example_record(**values: Any) -> InstanceRecord:
    """Return a record with these values: `launch_time` (Unix time) and any others of a running c7i.xlarge."""
    defaults: dict[str, Any] = {
        "id": "i-1",
        "region": "us-east-1",
        "state": "running",
        "private_ip": "127.77.0.2",
        "instance_type": "c7i.xlarge",
        "subnet": "subnet-1",
        "zone": "us-east-1a",
        "image": "ami-1",
        "user_data": "",
        "role_name": None,
        "tags": {},
        "autoscaling_group": None,
        "lifecycle_state": "InService",
    }
    return InstanceRecord.model_validate({**defaults, **values})
