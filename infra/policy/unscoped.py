"""Actions that roles may take on any resource: AWS knows none to name for them, and no narrower way."""

_REFERENCE = "https://docs.aws.amazon.com/service-authorization/latest/reference/"
# Action -> why it is needed, AWS's page.
UNSCOPED: dict[str, tuple[str, str]] = {
    "autoscaling:DescribeAutoScalingGroups": (
        "the controller sees which nodes are in its groups",
        f"{_REFERENCE}list_amazonec2autoscaling.html",
    ),
    "ecr:GetAuthorizationToken": (
        "Docker on a node logs in to the registry of the job's image: the token is for all of them",
        f"{_REFERENCE}list_amazonelasticcontainerregistry.html",
    ),
    "ssm:UpdateInstanceInformation": (
        "Session Manager's agent says that it is there",
        f"{_REFERENCE}list_awssystemsmanager.html",
    ),
    **{
        f"ssmmessages:{action}": (
            "a session of Session Manager speaks through it",
            f"{_REFERENCE}list_amazonsessionmanagermessagegatewayservice.html",
        )
        for action in ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")
    },
}
