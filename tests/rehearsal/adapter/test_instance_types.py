"""The look-up of an instance type."""

import inspect
import re

import pulumi_aws as aws_sdk
import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.errors import AdapterError, UnknownKey
from rehearsal.adapter.instance_types import as_look_up, shipped
from rehearsal.adapter.static import StaticAccount

LOOK_UP = "aws:ec2/getInstanceType:getInstanceType"
# What the types of the hardware catalog do not have.
OTHERS = {"fpgas", "inference_accelerators", "media_accelerators", "neuron_devices", "bandwidth_weightings"} | {
    f"total_{kind}_memory" for kind in ("fpga", "inference", "media", "neuron_device")
}


@pytest.mark.parametrize("name", ["t3.medium", "g6e.24xlarge", "p6-b300.48xlarge"])
def test_the_account_describes_a_type(account: Adapter, name: str) -> None:
    found = account.look_up(LOOK_UP, {"instanceType": name})
    assert found == {**as_look_up(shipped()[name]), "region": account.aws.region}


def test_the_static_account_describes_it_alike(account: Adapter) -> None:
    static = StaticAccount().look_up(LOOK_UP, {"instanceType": "p5.48xlarge"})
    assert {**static, "region": account.aws.region} == account.look_up(LOOK_UP, {"instanceType": "p5.48xlarge"})


def test_every_key_is_one_of_the_provider_s_and_none_is_forgotten() -> None:
    described = {**shipped()["p4d.24xlarge"], "NitroTpmInfo": {"SupportedVersions": ["2.0"]}}
    described["ProcessorInfo"] = {**described["ProcessorInfo"], "SupportedFeatures": ["amd-sev-snp"]}
    found = {re.sub("(?=[A-Z])", "_", key).lower() for key in as_look_up(described)}
    known = set(inspect.signature(aws_sdk.ec2.GetInstanceTypeResult.__init__).parameters) - {"__self__"}
    assert found == known - OTHERS - {"region"}


def test_a_type_that_ec2_does_not_know_is_refused(account: Adapter) -> None:
    with pytest.raises(AdapterError, match="InvalidInstanceType"):
        account.look_up(LOOK_UP, {"instanceType": "p9.huge"})


def test_another_key_of_the_look_up_is_unknown(account: Adapter) -> None:
    with pytest.raises(UnknownKey):
        account.look_up(LOOK_UP, {"instanceType": "t3.medium", "region": "eu-west-1"})


def test_other_accelerators_are_not_answered() -> None:
    with pytest.raises(NotImplementedError, match="InferenceAcceleratorInfo"):
        as_look_up(shipped()["inf1.xlarge"])
