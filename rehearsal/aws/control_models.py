"""What the control pages tell, as models: the rehearsal's own view of the account, which no AWS offers."""

from pydantic import Field

from trainyard.base import Contract


class InstanceTruth(Contract):
    """One instance as it truly is, terminated ones included."""

    id: str = Field(description="EC2 instance id.")
    region: str = Field(description="Region that it is in.")
    state: str = Field(description="EC2 state, e.g. running or terminated.")
    private_ip: str = Field(description="Private address of the primary interface.")
    instance_type: str = Field(description="EC2 instance type.")
    subnet: str = Field(description="Subnet id.")
    zone: str = Field(description="Availability zone.")
    image: str = Field(description="AMI id.")
    image_source: str | None = Field(
        default=None, description="Instance that its image was made of; none for an image of others."
    )
    user_data: str = Field(description="User-data in base64; empty when there is none.")
    role_name: str | None = Field(description="Role of the instance profile.")
    tags: dict[str, str] = Field(description="Tags of the instance.")
    launch_time: float = Field(description="Unix time of the launch by the account's clock, seconds.")
    terminated_time: float | None = Field(
        default=None, description="Unix time of the termination by the account's clock; none before it."
    )
    interrupted_time: float | None = Field(
        default=None,
        description="Unix time, by the account's clock, when EC2 takes a Spot Instance back; none without a notice.",
    )
    autoscaling_group: str | None = Field(description="Auto Scaling group that launched it.")
    lifecycle_state: str = Field(
        description="Target life-cycle state: InService, or Terminated once its termination began."
    )


class Resource(Contract):
    """One thing that exists in the account."""

    service: str = Field(description="Service, e.g. ec2.")
    kind: str = Field(description="Kind, e.g. vpc.")
    id: str = Field(description="Its id or name, with the region where it is a regional one outside EC2.")

    @property
    def names(self) -> frozenset[str]:
        """What a program may know it by: its id, and that without a region."""
        return frozenset([self.id, self.id.partition("/")[2]])
