"""The launch as the last resource of the stack: it ends when the job has started, and is stopped first by `destroy`."""

import hashlib
import shlex
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class LaunchArgs:
    """`manifest`: the manifest's text; another one means another launch."""

    scope: Scope
    manifest: pulumi.Input[str]


class Launch(pulumi.ComponentResource):
    """Runs `trainyard launch`. `result` is its last line on stdout: one JSON object.

    No clock and no absolute path among the inputs: any change of them runs it again. A changed manifest replaces the
    command, and the old job is stopped before the new one starts, never after.
    """

    result: pulumi.Output[str]

    def __init__(self, name: str, args: LaunchArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Launch", name, None, opts)
        stack = shlex.quote(args.scope.stack)
        start = f"./trainyard/launcher launch --stack {stack}"
        digest = pulumi.Output.from_input(args.manifest).apply(lambda text: hashlib.sha256(text.encode()).hexdigest())
        # The command inherits the shell's environment, not the provider's configuration.
        named = pulumi.Config("aws").get("profile")
        profile = {"AWS_PROFILE": named} if named else {}
        command = local.Command(
            "launch",
            create=start,
            update=start,
            delete=f"./trainyard/launcher stop --stack {stack}",
            dir="..",
            environment={"AWS_REGION": args.scope.region, **profile},
            triggers=[digest],
            add_previous_output_in_env=False,  # a long log in the environment makes later calls fail
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.result = command.stdout
        self.register_outputs({"result": self.result})
