"""An update of a deployed stack stays in its account and region, and keeps the key of its data."""

from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment
from tests.infra.conftest import deployed
from trainyard.errors import InputError

KEY, OTHER_KEY = (f"arn:aws:kms:us-east-1:123456789012:key/{name}" for name in ("0f1e2d3c", "1a2b3c4d"))
PLACE = {"account": "123456789012", "region": "us-east-1"}
BUCKET = "aws:s3/bucket:Bucket"
Changed = Callable[..., Deployment]


def refusal(changed: Changed, **arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        changed(**arguments)
    (problem,) = caught.value.problems
    return str(problem)


def test_stack_exports_account_and_region() -> None:
    exports = deployed("local").exports
    assert {name: exports[name] for name in PLACE} == PLACE


@pytest.mark.parametrize("place", [PLACE, {}])
def test_update_in_the_same_or_an_unknown_place_is_accepted(changed: Changed, place: dict[str, str]) -> None:
    assert changed(deployed=place).exports["region"] == "us-east-1"


def test_other_region_is_refused(changed: Changed) -> None:
    text = refusal(changed, deployed={**PLACE, "region": "eu-west-1"})
    assert text.startswith("aws:region = 'us-east-1': the stack local is deployed in eu-west-1: ")
    assert text.endswith("Set it to eu-west-1, or run `trainyard destroy -s local` with that region first.")


def test_other_account_is_refused(changed: Changed) -> None:
    text = refusal(changed, deployed={**PLACE, "account": "111122223333"})
    assert text.startswith("AWS account = '123456789012': the stack local is deployed in account 111122223333: ")


def test_data_bucket_has_the_key_as_a_tag(changed: Changed) -> None:
    def tag(**storage: str) -> str:
        return str(changed(storage=storage).resource(BUCKET, "trainyard-data").inputs["tags"]["trainyard:kms-key"])

    assert (tag(), tag(kms_key=KEY)) == ("stack-key", KEY)


@pytest.mark.parametrize(
    ("earlier", "storage", "fix"),
    [
        ("stack-key", {"kms_key": KEY}, "Remove it"),
        (KEY, {}, f"Set it to {KEY}"),
        (KEY, {"kms_key": OTHER_KEY}, f"Set it to {KEY}"),
    ],
)
def test_other_key_for_the_data_of_the_stack_is_refused(
    changed: Changed, earlier: str, storage: dict[str, str], fix: str
) -> None:
    text = refusal(changed, account={"retained_bucket": "data", "bucket_key": earlier}, storage=storage)
    assert "storage.kms_key" in text
    assert fix in text


@pytest.mark.parametrize(
    ("earlier", "storage"),
    [
        ("stack-key", {}),
        (KEY, {"kms_key": KEY}),
        (None, {"kms_key": KEY}),
        (KEY, {"bucket": "data", "kms_key": OTHER_KEY}),
    ],
)
def test_same_key_or_an_existing_bucket_is_accepted(
    changed: Changed, earlier: str | None, storage: dict[str, str]
) -> None:
    account = {"retained_bucket": "data", "bucket_key": earlier}
    assert changed(account=account, storage=storage).exports["region"] == "us-east-1"
