"""The lookup of an instance type."""

import inspect
import re

import pulumi_aws as aws_sdk
import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.errors import AdapterError, UnsupportedInputError
from rehearsal.adapter.instance_types import read_instance_types, to_lookup_result
from rehearsal.adapter.static_account import StaticAccount

LOOKUP = "aws:ec2/getInstanceType:getInstanceType"
# Results of the provider function that no type of the hardware catalog has.
UNUSED = {"fpgas", "inference_accelerators", "media_accelerators", "neuron_devices", "bandwidth_weightings"} | {
    f"total_{kind}_memory" for kind in ("fpga", "inference", "media", "neuron_device")
}


@pytest.mark.parametrize("name", ["t3.medium", "g6e.24xlarge", "p6-b300.48xlarge"])
def test_emulated_account_describes_a_type(account: EmulatedAccount, name: str) -> None:
    result = account.invoke(LOOKUP, {"instanceType": name})
    assert result == {**to_lookup_result(read_instance_types()[name]), "region": account.aws.region}


def test_static_account_describes_a_type_equally(account: EmulatedAccount) -> None:
    static = StaticAccount().invoke(LOOKUP, {"instanceType": "p5.48xlarge"})
    assert {**static, "region": account.aws.region} == account.invoke(LOOKUP, {"instanceType": "p5.48xlarge"})


def test_result_has_exactly_the_keys_of_the_provider() -> None:
    described = {**read_instance_types()["p4d.24xlarge"], "NitroTpmInfo": {"SupportedVersions": ["2.0"]}}
    described["ProcessorInfo"] = {**described["ProcessorInfo"], "SupportedFeatures": ["amd-sev-snp"]}
    result = {re.sub("(?=[A-Z])", "_", key).lower() for key in to_lookup_result(described)}
    known = set(inspect.signature(aws_sdk.ec2.GetInstanceTypeResult.__init__).parameters) - {"__self__"}
    assert result == known - UNUSED - {"region"}


def test_unknown_instance_type_raises_an_error(account: EmulatedAccount) -> None:
    with pytest.raises(AdapterError, match="InvalidInstanceType"):
        account.invoke(LOOKUP, {"instanceType": "p9.huge"})


def test_unsupported_argument_of_the_function_raises_an_error(account: EmulatedAccount) -> None:
    with pytest.raises(UnsupportedInputError):
        account.invoke(LOOKUP, {"instanceType": "t3.medium", "region": "eu-west-1"})


def test_type_with_other_accelerators_is_not_supported() -> None:
    with pytest.raises(NotImplementedError, match="InferenceAcceleratorInfo"):
        to_lookup_result(read_instance_types()["inf1.xlarge"])
