"""Models of the control API's responses: the rehearsal's view of the account, which AWS has no API for."""

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.report import CapacityRequestKind, PurchaseOption


class InstanceRecord(StrictModel):
    """The actual state of one instance, which may be terminated."""

    id: str = Field(description="EC2 instance id.")
    region: str = Field(description="Region of the instance.")
    state: str = Field(description="EC2 state, e.g. running or terminated.")
    private_ip: str = Field(description="Private address of the primary interface.")
    instance_type: str = Field(description="EC2 instance type.")
    subnet: str = Field(description="Subnet id.")
    zone: str = Field(description="Availability zone.")
    purchase_option: PurchaseOption = Field("on-demand", description="Purchase option.")
    image: str = Field(description="AMI id.")
    image_source: str | None = Field(
        default=None, description="Instance from which the image was created; none for an image of another account."
    )
    user_data: str = Field(description="User data in base64; empty without any.")
    role_name: str | None = Field(description="Role of the instance profile.")
    tags: dict[str, str] = Field(description="Tags of the instance.")
    launch_time: float = Field(description="Unix time of the launch by the account's clock, seconds.")
    terminated_time: float | None = Field(
        default=None, description="Unix time of the termination by the account's clock; none before termination."
    )
    interrupted_time: float | None = Field(
        default=None,
        description="Unix time by the account's clock at which EC2 interrupts a Spot Instance; none without a notice.",
    )
    autoscaling_group: str | None = Field(description="Auto Scaling group that launched it.")
    lifecycle_state: str = Field(
        description="Target lifecycle state: InService, or Terminated once the termination has started."
    )


class ReservationRecord(StrictModel):
    """An On-Demand Capacity Reservation, which may have ended."""

    id: str = Field(description="Reservation id.")
    instance_type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability Zone.")
    instances: int = Field(description="Reserved instances.")
    tags: dict[str, str] = Field(description="Tags of the reservation.")
    unused_seconds: float = Field(description="Instance-seconds that were reserved and not used.")


class CapacityRequestRecord(StrictModel):
    """One request for capacity: the launch of instances of one type, or the creation of a reservation."""

    kind: CapacityRequestKind = Field(description="Whether instances were launched or reserved.")
    instance_type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability Zone.")
    requested: int = Field(description="Requested instances.")
    granted: int = Field(description="Launched or reserved instances.")
    error_code: str | None = Field(description="AWS's error code when fewer are granted than requested.")
    tags: dict[str, str] = Field(description="Tags of the instances or the reservation.")


class Resource(StrictModel):
    """One resource that exists in the account."""

    service: str = Field(description="Service, e.g. ec2.")
    kind: str = Field(description="Resource type, e.g. vpc.")
    id: str = Field(description="Id or name; REGION/NAME for a regional resource outside EC2.")

    @property
    def names(self) -> frozenset[str]:
        """Return the id with and without the region, as a program may store either."""
        return frozenset([self.id, self.id.partition("/")[2]])
