"""The inputs of the program: settings, archives and lookups.

All are read and validated before the first resource: the engine creates resources as soon as they are registered.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pulumi
from pulumi.runtime.config import is_config_secret

from infra.components.archives import Kind
from infra.lookups.account import AccountFacts, look_up_account, make_scope
from infra.lookups.budget import budgets_allowed
from infra.lookups.data import look_up_sources
from infra.lookups.deployed import look_up_deployed
from infra.lookups.image import Image, look_up_image, look_up_monthly_image
from infra.lookups.instance_type import compare_with_catalog
from infra.lookups.retained import RetainedResources, look_up_retained
from infra.lookups.run import CurrentRun, look_up_current_run
from infra.packaging.archive import Packed
from infra.packaging.bundle import files_missing_in_bundle, pack_bundle
from infra.packaging.files import ROOT
from infra.packaging.source import pack_source
from infra.scope import Scope
from infra.validators.account import unlimited_exports, unsearched_zones, validate_account
from infra.validators.credentials import expiring_credentials
from infra.validators.custom_model import validate_custom_model
from infra.validators.data import validate_sources
from infra.validators.deployed import validate_deployed, validate_region
from infra.validators.source import validate_source
from trainyard.aws import tags
from trainyard.aws.access_problems import selected_profile
from trainyard.aws.region import environment_region
from trainyard.config import CONFIG_KEY
from trainyard.config.cost import max_run_usd
from trainyard.config.encrypted_settings import decrypted_settings
from trainyard.config.loader import load_settings
from trainyard.config.project import NAME, Project
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of one stack. `budget_usd`: per month; None: no budget."""

    project: Project
    settings: StackSettings
    archives: Mapping[Kind, Packed]
    facts: AccountFacts
    retained: RetainedResources
    current_run: CurrentRun | None
    head_image: Image
    worker_image: Image
    budget_usd: float | None
    scope: Scope


def read_inputs(project: Project) -> Inputs:
    """Read and validate the inputs of the stack. Raises InputError with the problems of the first step that fails."""
    stack = pulumi.get_stack()
    settings = _read_settings(project, stack)
    archives = _pack_archives(project, settings)
    deployed = look_up_deployed()
    validate_region(pulumi.Config("aws").get("region") or environment_region(), deployed)
    stack_tag = tags.stack_tag(pulumi.get_project(), stack)
    facts, retained = look_up_account(settings, stack_tag), look_up_retained(stack_tag)
    validate_deployed(settings, facts, deployed, retained)
    validate_account(settings, facts, retained.staging_bucket is not None)
    sources = look_up_sources(settings, settings.storage.bucket or retained.bucket, facts.region)
    validate_sources(settings, facts, *sources, retained.staging_bucket is not None)
    profile = pulumi.Config("aws").get("profile") or selected_profile()
    credentials = expiring_credentials(os.environ, settings, datetime.now(UTC), profile)
    warnings = (credentials, unsearched_zones(stack, settings, facts), unlimited_exports(settings))
    for warning in filter(None, warnings):
        pulumi.log.warn(warning)
    _compare_types_with_catalog(settings)
    return Inputs(
        project=project,
        settings=settings,
        archives=archives,
        facts=facts,
        retained=retained,
        current_run=look_up_current_run(retained.staging_bucket, settings.storage.bucket or retained.bucket),
        head_image=look_up_monthly_image(settings.head_image, settings.root_volume_gib, datetime.now(UTC).date()),
        worker_image=look_up_image(settings.worker_image, settings.root_volume_gib),
        budget_usd=_budget_usd(settings, stack),
        scope=make_scope(pulumi.get_project(), stack, settings, facts),
    )


def _read_settings(project: Project, stack: str) -> StackSettings:
    source = project.source(stack)
    if is_config_secret(CONFIG_KEY):
        raise InputError(decrypted_settings(project.stack_file(stack), source))
    return load_settings(pulumi.Config(NAME).get_object("cluster"), project.folder, source)


def _pack_archives(project: Project, settings: StackSettings) -> dict[Kind, Packed]:
    validate_custom_model(settings, ROOT)
    if missing := files_missing_in_bundle(ROOT):
        pulumi.log.warn(f"nodes do not get files that git does not track: {', '.join(missing)}. To add them: git add")
    archives: dict[Kind, Packed] = {"bundle": pack_bundle(ROOT)}
    if settings.job.source:
        archives["job"] = pack_source(project.folder, settings.job.source, settings.job.script)
        if warning := validate_source(settings, archives["job"]):
            pulumi.log.warn(warning)
    return archives


def _compare_types_with_catalog(settings: StackSettings) -> None:
    """Compare the catalog's facts of each instance type of the workers with EC2."""
    entries = {entry.name: entry for plan in settings.groups for entry in settings.types_of(plan)}
    for entry in entries.values():
        compare_with_catalog(entry)


def _budget_usd(settings: StackSettings, stack: str) -> float | None:
    """Return the amount of the budget; None without a budget, or without permission to read budgets."""
    if not settings.guardrails.budget or not budgets_allowed(stack):
        return None
    return settings.guardrails.budget_usd or max_run_usd(settings)
