"""The launch as the last resource of the stack: it ends when the job has started, and is stopped first by `destroy`."""

import hashlib
import shlex
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from infra.components.manifest import manifest_uri
from infra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class LaunchArgs:
    """`manifest`: the manifest's text, another one means another launch; `bucket`: where it lies."""

    scope: Scope
    manifest: pulumi.Input[str]
    bucket: pulumi.Input[str]


class Launch(pulumi.ComponentResource):
    """Runs `trainyard launch`. `result` is its last line on stdout: one JSON object.

    No clock and no absolute path among the inputs: any change of them runs `update`. What that does is the launch's to
    decide, who knows the run on the cluster: nothing, more nodes for it, or another run in its place.
    """

    result: pulumi.Output[str]

    def __init__(self, name: str, args: LaunchArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Launch", name, None, opts)
        # By the manifest's own URI: AWS's index of tags may not know a bucket yet that was made a minute ago.
        target = pulumi.Output.from_input(args.bucket).apply(
            lambda bucket: shlex.join(["--stack", args.scope.stack, "--manifest", manifest_uri(bucket)])
        )
        # The command inherits the shell's environment, not the provider's configuration.
        named = pulumi.Config("aws").get("profile")
        environment = {"AWS_REGION": args.scope.region, **({"AWS_PROFILE": named} if named else {})}
        digest = pulumi.Output.from_input(args.manifest).apply(lambda text: hashlib.sha256(text.encode()).hexdigest())
        launch = pulumi.Output.concat("./trainyard/launcher launch ", target, " --sha256 ", digest)
        command = local.Command(
            "launch",
            create=launch,
            update=pulumi.Output.concat(launch, " --update"),
            delete=pulumi.Output.concat("./trainyard/launcher stop ", target),
            dir="..",
            environment=environment,
            add_previous_output_in_env=False,  # a long log in the environment makes later calls fail
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.result = command.stdout
        self.register_outputs({"result": self.result})
