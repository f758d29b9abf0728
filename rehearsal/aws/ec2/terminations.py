"""Terminations without an API call: Spot interruption, end of a Capacity Block, shutdown from within the instance."""

from typing import Any

from moto.autoscaling.models import autoscaling_backends


def reclaim_instance(instance: Any, reason: str) -> None:
    """Terminate an instance on behalf of EC2; its Auto Scaling group, if any, replaces it."""
    instance.terminate()
    instance._reason = reason
    backend = instance.ec2_backend
    autoscaling_backends[backend.account_id][backend.region_name].notify_terminate_instances([instance.id])


def apply_instance_shutdown(instance: Any) -> None:
    """Stop or terminate an instance whose operating system has shut down, by InstanceInitiatedShutdownBehavior.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_ChangingInstanceInitiatedShutdownBehavior.html
    """
    if instance.state != "running":
        return
    if instance.instance_initiated_shutdown_behavior == "terminate":
        reclaim_instance(instance, "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
    else:
        instance.stop()
