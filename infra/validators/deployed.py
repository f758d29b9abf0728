"""Validate that an update stays in the account and region of the deployed stack, and keeps the key of its data."""

from collections.abc import Iterator

import pulumi

from infra.lookups.account import AccountFacts
from infra.lookups.deployed import DeployedStack
from infra.lookups.retained import RetainedResources
from trainyard.aws import tags
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem

_CONSEQUENCES = "this update would replace all resources, end an active run, and leave its data there"


def validate_region(region: str | None, deployed: DeployedStack) -> None:
    """Raise InputError for another region than that of the deployed stack.

    Call it before the first lookup: a lookup registers the provider of the new region in the state, and then the engine
    would replace all resources in an update with the earlier region too. Source: providerChanged in
    pkg/resource/deploy/step_generator.go of github.com/pulumi/pulumi.
    """
    if region is None or deployed.region in (None, region):
        return
    stack = pulumi.get_stack()
    reason = f"the stack {stack} is deployed in {deployed.region}: {_CONSEQUENCES}"
    fix = f"Set it to {deployed.region}, or run `trainyard destroy -s {stack}` with that region first"
    raise InputError([Problem("aws:region", region, reason, fix, "region_changed")])


def validate_deployed(
    settings: StackSettings, facts: AccountFacts, deployed: DeployedStack, retained: RetainedResources
) -> None:
    """Raise InputError if the update would move the stack, or make the data in its bucket unreadable for its nodes."""
    validate_region(facts.region, deployed)  # a region of the AWS profile is known only now
    if problems := [*_same_account(facts, deployed), *_same_key(settings, retained)]:
        raise InputError(problems)


def _same_account(facts: AccountFacts, deployed: DeployedStack) -> Iterator[Problem]:
    if deployed.account not in (None, facts.account):
        stack = pulumi.get_stack()
        reason = (
            f"the stack {stack} is deployed in account {deployed.account}: this update would look for its resources in "
            "another account"
        )
        fix = f"Use credentials of account {deployed.account}, or run `trainyard destroy -s {stack}` with them first"
        yield Problem("AWS account", facts.account, reason, fix, "account_changed")


def _same_key(settings: StackSettings, retained: RetainedResources) -> Iterator[Problem]:
    """The stack's own data bucket keeps its key: the policy of the nodes would not allow that of earlier objects."""
    key, earlier = settings.storage.kms_key, retained.bucket_key
    if settings.storage.bucket or earlier in (None, key or tags.STACK_KEY):
        return
    is_own = earlier == tags.STACK_KEY
    owner = "its own key" if is_own else earlier
    reason = f"the data of the stack is encrypted with {owner}, which its nodes could not use any more"
    fix = "Remove it" if is_own else f"Set it to {earlier}"
    fix += ". For another key, deploy another stack and copy the data"
    yield invalid_setting("storage.kms_key", key, reason, fix, "key_changed")
