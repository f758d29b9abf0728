"""Terminations: TerminateInstances, Spot interruption, end of a Capacity Block, shutdown from within the instance."""

from typing import Any

from moto.autoscaling.models import autoscaling_backends
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from rehearsal.aws.moto_extension import extend


def terminate_by_ec2(instance: Any, reason: str) -> None:
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
        terminate_by_ec2(instance, "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
    else:
        instance.stop()


def install() -> None:
    """Add the parameter SkipOsShutdown to moto's TerminateInstances.

    Source: EC2 user guide, "Methods for terminating an instance"; the page excludes no instance type.
    """
    moto_terminate = EC2Response.terminate_instances

    def terminate_instances(self: Any) -> ActionResult:
        if str(self._get_param("SkipOsShutdown", False)).lower() == "true":
            for name in self._get_param("InstanceIds", []):
                self.ec2_backend.get_instance(name).skips_os_shutdown = True
        return moto_terminate(self)

    extend(EC2Response, terminate_instances)
