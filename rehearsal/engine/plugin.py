"""The engine with the Pulumi CLI and pulumi-aws's own plugin, which its settings lead to the emulated account.

Untried: what the CLI hands to a plugin was seen, the plugin was not.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from rehearsal.adapter.account import handlers
from rehearsal.adapter.command import Command
from rehearsal.adapter.lookups import LOOK_UPS
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Scene
from rehearsal.engine.cli import Cli, attaching, check_cli, has_plugin
from trainyard.base import InputError, Problem
from trainyard.models.report import Scaled

# Types and look-ups that go to another service than the one they are named for: by token, or by the token's module.
_SERVED_BY = {
    "aws:cloudwatch/logGroup:LogGroup": "logs",
    "aws:index/getCallerIdentity:getCallerIdentity": "sts",
    "index": "ec2",
    "vpc": "ec2",
}


def check_plugin() -> None:
    """Raises InputError where the Pulumi CLI or the plugin can't be had."""
    check_cli("pulumi-aws")
    if not has_plugin("aws"):
        why = "pulumi-resource-aws is neither on PATH nor among Pulumi's plugins"
        fix = f"Run pulumi plugin install resource aws {version('pulumi-aws')}, or take --engine pulumi"
        raise InputError([Problem(key="--engine", value="pulumi-aws", why=why, fix=fix)])


def services() -> list[str]:
    """What of AWS the program's types and look-ups call, by the provider's keys of `aws:endpoints`."""
    found = set()
    for token in (*handlers(Command(skip=True)), *LOOK_UPS):
        package, member, _ = token.split(":")
        module = member.partition("/")[0]
        if package == "aws":
            found.add(_SERVED_BY.get(token) or _SERVED_BY.get(module, module))
    return sorted(found)


def settings_for(endpoint: str, region: str) -> dict[str, Any]:
    """The provider's settings in the stack's config. Credentials stand in the environment.

    AWS_ENDPOINT_URL there leads any service that is not named here. The account's id is asked of the emulated STS:
    the provider writes it into ARNs.
    """
    return {
        "aws:region": region,
        "aws:endpoints": [dict.fromkeys(services(), endpoint)],
        "aws:s3UsePathStyle": True,  # a bucket's name before the host is no name that resolves here
        "aws:skipCredentialsValidation": True,  # pulumi-aws's own comes before the provider that has the endpoints
        "aws:skipMetadataApiCheck": True,
    }


@contextmanager
def plugin(scene: Scene) -> Iterator["Plugin"]:
    """A provider of `command` answers as long as this lasts, where Pulumi has no plugin of it."""
    with attaching(scene) as attached:
        yield Plugin(scene, attached, settings_for(scene.aws.endpoint, scene.aws.region))


class Plugin(Cli):
    """What was made, the CLI's own state tells alone: the plugin's calls do not say which resource they serve."""

    def check_calls(self, made: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        return []

    def scaled(self) -> list[Scaled]:
        left_out = Scaled(
            what="the check that each resource made owns a call in the account's journal",
            by="the word of the CLI's own state",
            why="the plugin's calls do not say which resource they serve",
        )
        return [*super().scaled(), left_out]
