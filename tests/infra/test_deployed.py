"""An update of a deployed stack stays in its account and region, and keeps the key of its data."""

from collections.abc import Callable
from typing import Any

import pytest

from infra.lookups.deployed import READ_OUTPUTS
from rehearsal.adapter import mocks
from rehearsal.adapter.deployment import Deployment
from tests.infra.conftest import deployed
from trainyard.errors import InputError

KEY, OTHER_KEY = (f"arn:aws:kms:us-east-1:123456789012:key/{name}" for name in ("0f1e2d3c", "1a2b3c4d"))
OUTPUTS = {"account": "123456789012", "region": "us-east-1", "kms_key": ""}
Changed = Callable[..., Deployment]


def refusal(changed: Changed, outputs: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        changed(outputs={**OUTPUTS, **outputs}, **changes)
    (problem,) = caught.value.problems
    return str(problem)


def test_stack_exports_account_region_and_key() -> None:
    exports = deployed("local").exports
    assert {name: exports[name] for name in OUTPUTS} == OUTPUTS


def test_update_in_the_same_account_and_region_is_accepted(changed: Changed) -> None:
    assert changed(outputs=OUTPUTS).exports["region"] == "us-east-1"


def test_stack_of_a_version_without_these_outputs_is_accepted(changed: Changed) -> None:
    assert changed(outputs={"data_bucket": "data"}).exports["region"] == "us-east-1"


def test_other_region_is_refused(changed: Changed) -> None:
    text = refusal(changed, {"region": "eu-west-1"})
    assert text.startswith("aws:region = 'us-east-1': the stack local is deployed in eu-west-1: ")
    assert text.endswith("Set it to eu-west-1, or run `trainyard destroy -s local` with that region first.")


def test_other_account_is_refused(changed: Changed) -> None:
    text = refusal(changed, {"account": "111122223333"})
    assert text.startswith("AWS account = '123456789012': the stack local is deployed in account 111122223333: ")


@pytest.mark.parametrize(
    ("earlier", "storage", "fix"),
    [("", {"kms_key": KEY}, "Remove it"), (KEY, {}, f"Set it to {KEY}"), (KEY, {"kms_key": OTHER_KEY}, f"to {KEY}")],
)
def test_other_key_is_refused(changed: Changed, earlier: str, storage: dict[str, str], fix: str) -> None:
    text = refusal(changed, {"kms_key": earlier}, storage=storage)
    assert "storage.kms_key" in text
    assert fix in text


def test_other_key_for_the_retained_data_of_a_destroyed_stack_is_refused(changed: Changed) -> None:
    account = {"retained_bucket": "data", "retained_key_id": "0f1e2d3c"}
    with pytest.raises(InputError, match="is encrypted with its own key"):
        changed(account=account, storage={"kms_key": OTHER_KEY})
    assert changed(account=account).exports["kms_key"] == ""


def test_function_of_the_engine_is_the_one_that_the_mocks_return() -> None:
    assert mocks.READ_OUTPUTS == READ_OUTPUTS
