"""Actions that roles may perform on all resources, because AWS supports no resource-level permissions for them."""

_REFERENCE = "https://docs.aws.amazon.com/service-authorization/latest/reference/"
# Action -> reason, and page of the service authorization reference.
UNSCOPED: dict[str, tuple[str, str]] = {
    "autoscaling:DescribeAutoScalingGroups": (
        "the controller lists the nodes of its groups",
        f"{_REFERENCE}list_amazonec2autoscaling.html",
    ),
    "autoscaling:DescribeScheduledActions": (
        "the controller deletes the scheduled start of a run that ends before it",
        f"{_REFERENCE}list_amazonec2autoscaling.html",
    ),
    "autoscaling:DescribeScalingActivities": (
        "the controller reports why nodes are missing after a scheduled start",
        f"{_REFERENCE}list_amazonec2autoscaling.html",
    ),
    "ec2:DescribeCapacityReservations": (
        "the controller reads size and end of the run's reservations, and whether their owner reclaims instances",
        f"{_REFERENCE}list_amazonec2.html",
    ),
    "ec2:DescribeCapacityBlocks": (
        "the controller reads whether the Capacity Block is one of UltraServers, which end earlier",
        f"{_REFERENCE}list_amazonec2.html",
    ),
    # EC2's Describe actions support no resource-level permissions (EC2 user guide, "IAM policies"). That this holds for
    # DescribeInstanceTopology, which is newer than that page, is an assumption.
    "ec2:DescribeInstanceTopology": (
        "the controller orders the ranks by the network topology of the nodes",
        f"{_REFERENCE}list_amazonec2.html",
    ),
    "ec2:DescribeInstanceStatus": (
        "the controller reads whether a node without heartbeats runs and passes its status checks",
        f"{_REFERENCE}list_amazonec2.html",
    ),
    "ecr:GetAuthorizationToken": (
        "Docker on a node logs in to the registry of the job's image; a token covers all registries",
        f"{_REFERENCE}list_amazonelasticcontainerregistry.html",
    ),
    "ssm:UpdateInstanceInformation": (
        "the SSM agent registers the instance",
        f"{_REFERENCE}list_awssystemsmanager.html",
    ),
    **{
        f"ssmmessages:{action}": (
            "Session Manager sessions use it",
            f"{_REFERENCE}list_amazonsessionmanagermessagegatewayservice.html",
        )
        for action in ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")
    },
}
