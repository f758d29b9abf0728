"""RunInstances and launch templates as API actions, and the state of instances that moto does not keep."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceState
from moto.ec2.models.launch_templates import LaunchTemplate
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

from rehearsal.aws.active_faults import ApiError, InsufficientCapacityError
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.idempotency import once_per_token
from rehearsal.aws.ec2.launch import Launcher, encode_user_data
from rehearsal.aws.ec2.launch_validation import LaunchParameters, launch_error
from rehearsal.aws.ec2.transitions import ENDED_STATES, start_launch, start_termination
from rehearsal.aws.ec2.visibility import has_hidden_address
from rehearsal.aws.moto_extension import ec2_error, extend

_REQUEST_ONLY_KEYS = {"DryRun", "MinCount", "MaxCount", "LaunchTemplate"}


def install(launcher: Launcher) -> None:
    """Replace moto's RunInstances and extend instances and launch templates."""

    def run_instances(self: Any) -> ActionResult:
        backend, params = self.ec2_backend, dict(self._get_params())
        minimum, maximum = int(params.get("MinCount", 1)), int(params.get("MaxCount", 1))
        if maximum < minimum or minimum < 1:
            raise ec2_error(
                "InvalidParameterValue", f"Invalid value '{maximum}' for maxCount. Must be at least minCount."
            )
        launch_parameters: LaunchParameters = {
            key: value for key, value in params.items() if key not in _REQUEST_ONLY_KEYS
        }
        self.error_on_dryrun()

        def launch() -> Any:
            return _launch(launcher, backend, launch_parameters, params.get("LaunchTemplate"), minimum, maximum)

        return ActionResult(once_per_token(backend, "RunInstances", params, launch))

    extend(EC2Response, run_instances, describe_instance_credit_specifications)
    _install_templates()
    _install_instance_state()
    extend(TaggedEC2Resource, get_tags)


def _launch(
    launcher: Launcher,
    backend: Any,
    parameters: LaunchParameters,
    template: LaunchParameters | None,
    minimum: int,
    maximum: int,
) -> Any:
    try:
        return launcher.launch(backend, parameters, maximum, template, minimum_count=minimum)
    except InsufficientCapacityError as error:  # EC2 reports it with HTTP 500, on which clients may retry
        raise ApiError("500 Internal Server Error", error.code, error.message) from None


def describe_instance_credit_specifications(self: Any) -> ActionResult:
    """Return the CPU credits of the named instances; moto returns `standard` for all.

    Source of the defaults: EC2 user guide, "Work with burstable performance instances".
    """
    instances = self.ec2_backend.describe_instance_credit_specifications(self._get_param("InstanceIds", []))
    specifications = [
        {"InstanceId": instance.id, "CpuCredits": instance.cpu_credits or _default_credits(instance.instance_type)}
        for instance in instances
    ]
    return ActionResult({"InstanceCreditSpecifications": specifications})


def _default_credits(instance_type: str) -> str:
    burstable = INSTANCE_TYPES[instance_type].get("BurstablePerformanceSupported")
    return "unlimited" if burstable and not instance_type.startswith("t2.") else "standard"


def get_tags(self: Any) -> list[dict[str, str]]:
    """Return the tags of one resource. moto scans all tags, once per interface of each instance that it lists."""
    resource_type = EC2_PREFIX_TO_RESOURCE.get(get_prefix(self.id), "")
    tags = self.ec2_backend.tags.get(self.id, {})
    return [{"resource_id": self.id, "key": key, "value": tags[key], "resource_type": resource_type} for key in tags]


def _install_instance_state() -> None:
    moto_init, moto_terminate = Instance.__init__, Instance.terminate

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        moto_init(self, *args, **kwargs)
        self.launched_at, self.launch_time = CLOCK.now(), CLOCK.utc()
        start_launch(self)

    def terminate(self: Any) -> InstanceState:
        """Terminate the instance and release its addresses; without effect, as in EC2, on a terminated instance."""
        if self.state in ENDED_STATES:
            return InstanceState(self.state, self.state_code)
        state: InstanceState = moto_terminate(self)
        self.terminated_at = CLOCK.now()
        self._reason = f"User initiated ({CLOCK.utc():%Y-%m-%d %H:%M:%S} GMT)"
        for address in self._private_ips:
            self.ec2_backend.get_subnet(self.subnet_id).del_subnet_ip(address)
        start_termination(self)
        return state

    extend(
        Instance,
        terminate,
        __init__=init,
        # A terminated instance has no interfaces and no address.
        network_interfaces=property(lambda self: [] if has_hidden_address(self) else list(self.nics.values())),
        private_ip_address=property(lambda self: None if has_hidden_address(self) else self.private_ip),
        terminated_at=None,
        capacity_reservation_id=None,
        launched_into=None,
        cpu_credits=None,
        interrupted_at=None,
        transition=None,
        is_reclaimed=False,
        is_terminating=False,
        skips_os_shutdown=False,
    )


def _install_templates() -> None:
    moto_create_version, moto_create_template = LaunchTemplate.create_version, EC2Response.create_launch_template
    moto_create_template_version = EC2Response.create_launch_template_version

    def create_version(self: Any, data: LaunchParameters, description: str) -> Any:
        """Store all user data encoded, and no tag specification of the template itself, which launches do not use."""
        kept = {key: value for key, value in dict(data).items() if value is not None}
        if "UserData" in kept:
            kept["UserData"] = encode_user_data(kept)
        specifications = kept.pop("TagSpecifications", [])
        specifications = [entry for entry in specifications if entry["ResourceType"] != "launch-template"]
        if specifications:
            kept["TagSpecifications"] = specifications
        return moto_create_version(self, kept, description)

    def create_launch_template(self: Any) -> ActionResult:
        return _add_warning(self, moto_create_template(self), self._get_param("LaunchTemplateData", {}))

    def create_launch_template_version(self: Any) -> ActionResult:
        if self._get_param("SourceVersion"):
            raise NotImplementedError("a launch template version with SourceVersion")
        return _add_warning(self, moto_create_template_version(self), self._get_param("LaunchTemplateData", {}))

    extend(LaunchTemplate, create_version, tags=property(LaunchTemplate.get_tags, lambda self, value: None))
    extend(EC2Response, create_launch_template, create_launch_template_version)


def _add_warning(response: Any, created: ActionResult, data: LaunchParameters) -> ActionResult:
    """Add the Warning with which EC2 creates a template that every launch would fail with."""
    complete = data.get("ImageId") and data.get("InstanceType")
    error = launch_error(response.ec2_backend, dict(data)) if complete else None
    if error is None:
        return created
    assert isinstance(created.result, dict)
    warning = {"Errors": [{"Code": error.code, "Message": error.message}]}
    return ActionResult({**created.result, "Warning": warning})
