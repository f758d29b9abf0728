"""RunInstances and launch templates as API actions, with all that the template asks."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instances import Instance, InstanceState
from moto.ec2.models.launch_templates import LaunchTemplate
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix

from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2.launch import Launcher, user_data_of
from rehearsal.aws.ec2.launch_checks import Asked, problem
from rehearsal.aws.ec2.visibility import without_address
from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.injection import InsufficientCapacity, Refusal

_NOT_OF_A_LAUNCH = {"DryRun", "MinCount", "MaxCount", "LaunchTemplate"}


def install(launcher: Launcher) -> None:
    def run_instances(self: Any) -> ActionResult:
        backend, params = self.ec2_backend, dict(self._get_params())
        lowest, most = int(params.get("MinCount", 1)), int(params.get("MaxCount", 1))
        if most < lowest or lowest < 1:
            raise refuse("InvalidParameterValue", f"Invalid value '{most}' for maxCount. Must be at least minCount.")
        asked: Asked = {key: value for key, value in params.items() if key not in _NOT_OF_A_LAUNCH}
        self.error_on_dryrun()
        token = str(params.get("ClientToken") or "")
        answered: dict[str, Any] = vars(backend).setdefault("_run_instances_tokens", {})
        launched = answered.get(token)
        if launched is None:
            launched = _launched(launcher, backend, asked, params.get("LaunchTemplate"), lowest, most)
            if token:
                answered[token] = launched
        return ActionResult(launched)

    extend(EC2Response, run_instances)
    _install_templates()
    _install_lives()
    extend(TaggedEC2Resource, get_tags)


def _launched(launcher: Launcher, backend: Any, asked: Asked, template: Asked | None, lowest: int, most: int) -> Any:
    try:
        return launcher.launch(backend, asked, most, template, at_least=lowest)
    except InsufficientCapacity as error:  # EC2 answers its own failures with 500: clients may repeat them
        raise Refusal("500 Internal Server Error", error.code, error.message) from None


def get_tags(self: Any) -> list[dict[str, str]]:
    """The tags of one resource. moto looks through those of all, once for each interface of each instance told."""
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(self.id), "")
    own = self.ec2_backend.tags.get(self.id, {})
    return [{"resource_id": self.id, "key": key, "value": own[key], "resource_type": kind} for key in own]


def _install_lives() -> None:
    make, end = Instance.__init__, Instance.terminate

    def made(self: Any, *args: Any, **given: Any) -> None:
        make(self, *args, **given)
        self.launched_at, self.launch_time = CLOCK.now(), CLOCK.utc()

    def terminate(self: Any) -> InstanceState:
        """To terminate what is terminated is no error in EC2; the subnet's addresses are free again."""
        if self.state == "terminated":
            return InstanceState("terminated", self.state_code)
        ended: InstanceState = end(self)
        self.terminated_at = CLOCK.now()
        self._reason = f"User initiated ({CLOCK.utc():%Y-%m-%d %H:%M:%S} GMT)"
        for address in self._private_ips:
            self.ec2_backend.get_subnet(self.subnet_id).del_subnet_ip(address)
        return ended

    extend(
        Instance,
        terminate,
        __init__=made,
        # A terminated instance has neither interfaces nor an address any more.
        network_interfaces=property(lambda self: [] if without_address(self) else list(self.nics.values())),
        private_ip_address=property(lambda self: None if without_address(self) else self.private_ip),
        terminated_at=None,
        capacity_reservation_id=None,
        interrupted_at=None,
        is_ending=False,
    )


def _install_templates() -> None:
    made, answer = LaunchTemplate.create_version, EC2Response.create_launch_template
    answer_version = EC2Response.create_launch_template_version

    def create_version(self: Any, data: Asked, description: str) -> Any:
        """The template's own tags are none of what a launch gets, and user-data of later versions is kept as well."""
        kept = {key: value for key, value in dict(data).items() if value is not None}
        if "UserData" in kept:
            kept["UserData"] = user_data_of(kept)
        specifications = kept.pop("TagSpecifications", [])
        specifications = [each for each in specifications if each["ResourceType"] != "launch-template"]
        if specifications:
            kept["TagSpecifications"] = specifications
        return made(self, kept, description)

    def create_launch_template(self: Any) -> ActionResult:
        return _warned(self, answer(self), self._get_param("LaunchTemplateData", {}))

    def create_launch_template_version(self: Any) -> ActionResult:
        if self._get_param("SourceVersion"):
            raise NotImplementedError("a version made from another")
        return _warned(self, answer_version(self), self._get_param("LaunchTemplateData", {}))

    extend(LaunchTemplate, create_version, tags=property(LaunchTemplate.get_tags, lambda self, value: None))
    extend(EC2Response, create_launch_template, create_launch_template_version)


def _warned(response: Any, answer: ActionResult, data: Asked) -> ActionResult:
    """EC2 makes a template that no launch could use, and says so in the answer's Warning."""
    complete = data.get("ImageId") and data.get("InstanceType")
    error = problem(response.ec2_backend, dict(data)) if complete else None
    if error is None:
        return answer
    assert isinstance(answer.result, dict)
    warning = {"Errors": [{"Code": error.code, "Message": error.message}]}
    return ActionResult({**answer.result, "Warning": warning})
