"""How an instance ends without a call: a Spot Instance that EC2 takes back, one whose Capacity Block ends, one that
switches itself off."""

from typing import Any

from moto.autoscaling.models import autoscaling_backends


def reclaim(instance: Any, reason: str) -> None:
    """End an instance; a group that it belonged to makes it good."""
    instance.terminate()
    instance._reason = reason
    backend = instance.ec2_backend
    autoscaling_backends[backend.account_id][backend.region_name].notify_terminate_instances([instance.id])


def switch_off(instance: Any) -> None:
    """What becomes of an instance that has switched itself off is its own attribute InstanceInitiatedShutdownBehavior.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
    """
    if instance.state != "running":
        return
    if instance.instance_initiated_shutdown_behavior == "terminate":
        reclaim(instance, "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
    else:
        instance.stop()
