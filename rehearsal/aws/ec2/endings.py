"""How EC2 itself ends an instance: a Spot Instance that it takes back, one in a Capacity Block that ends."""

from typing import Any

from moto.autoscaling.models import autoscaling_backends


def reclaim(instance: Any, reason: str) -> None:
    """End an instance; a group that it belonged to makes it good."""
    instance.terminate()
    instance._reason = reason
    backend = instance.ec2_backend
    autoscaling_backends[backend.account_id][backend.region_name].notify_terminate_instances([instance.id])
