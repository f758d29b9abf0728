"""Which machine image nodes boot, by what the instance type has."""

import pulumi_aws as aws

from contract.catalog import InstanceType

# Public parameters, kept current by their owners. Both are Ubuntu 24.04 with cloud-init and the SSM agent.
PLAIN = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
GPU = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
ROOT_DEVICE = "/dev/sda1"


def image_for(instance_type: InstanceType) -> str:
    """The image id as of now. It drifts: who uses it ignores later changes, or an `up` would replace the cluster."""
    return aws.ssm.get_parameter(name=GPU if instance_type.gpu else PLAIN).insecure_value
