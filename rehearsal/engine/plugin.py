"""The Pulumi CLI with the real pulumi-aws plugin as engine, configured to call the emulated account.

Untested with the real plugin: tests check only the settings that the CLI receives.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from rehearsal.adapter.account import handlers
from rehearsal.adapter.command import Command
from rehearsal.adapter.lookups import LOOKUPS
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Context
from rehearsal.engine.cli import CliEngine, attached_providers, check_cli, has_plugin
from trainyard.errors import InputError, Problem
from trainyard.models.report import Substitution

# Types and functions whose AWS service differs from the module of their token: by token, or by the token's module.
_SERVICES = {
    "aws:cloudwatch/logGroup:LogGroup": "logs",
    "aws:index/getCallerIdentity:getCallerIdentity": "sts",
    "index": "ec2",
    "vpc": "ec2",
}


def check_plugin() -> None:
    """Raise InputError when the Pulumi CLI or the pulumi-aws plugin is not installed."""
    check_cli("pulumi-aws")
    if not has_plugin("aws"):
        reason = "pulumi-resource-aws is not on PATH and not among Pulumi's installed plugins"
        fix = f"Run pulumi plugin install resource aws {version('pulumi-aws')}, or use --engine pulumi"
        raise InputError([Problem("--engine", "pulumi-aws", reason, fix, "plugin_not_installed")])


def services() -> list[str]:
    """Return the AWS services that the program's types and functions call, as keys of `aws:endpoints`."""
    names = set()
    for token in (*handlers(Command(skip=True)), *LOOKUPS):
        package, member, _ = token.split(":")
        module = member.partition("/")[0]
        if package == "aws":
            names.add(_SERVICES.get(token) or _SERVICES.get(module, module))
    return sorted(names)


def provider_config(endpoint: str, region: str) -> dict[str, Any]:
    """Return the plugin's settings for the stack's config. The environment has the credentials.

    AWS_ENDPOINT_URL in the environment covers services that are not listed. The plugin requests the account id from the
    emulated STS, because ARNs contain it.
    """
    return {
        "aws:region": region,
        "aws:endpoints": [dict.fromkeys(services(), endpoint)],
        "aws:s3UsePathStyle": True,  # a host name with the bucket's name would not resolve
        "aws:skipCredentialsValidation": True,  # pulumi-aws validates before the provider with the endpoints exists
        "aws:skipMetadataApiCheck": True,
    }


@contextmanager
def plugin_engine(context: Context) -> Iterator["PluginEngine"]:
    """Yield the engine, with a provider of `command` when Pulumi has no plugin of it."""
    with attached_providers(context) as ports:
        yield PluginEngine(context, ports, provider_config(context.aws.endpoint, context.aws.region))


class PluginEngine(CliEngine):
    """Runs the program with the Pulumi CLI and the pulumi-aws plugin.

    Only the CLI's state lists the created resources: the plugin's API calls do not name the resource that they are for.
    """

    def check_calls(self, created: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        """Return no differences: the plugin's calls do not name their resource, so there is nothing to compare."""
        return []

    def substitutions(self) -> list[Substitution]:
        """Return the substitutes of CliEngine, and the check that is not possible."""
        check_calls = Substitution(
            original="the check that each created resource has an API call in the account's journal",
            replacement="the list of resources in the CLI's state",
            reason="the plugin's calls do not name the resource that they are for",
        )
        return [*super().substitutions(), check_calls]
