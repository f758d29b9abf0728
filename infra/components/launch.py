"""The launch of the job: the last resource that `up` creates and the first that `destroy` deletes."""

import hashlib
import shlex
from dataclasses import dataclass

import pulumi
from pulumi_command import local

from infra.components.manifest import manifest_uri
from infra.scope import Scope
from infra.validators.active_run import again
from trainyard.config.settings.job import LaunchSettings


@dataclass(frozen=True, kw_only=True)
class LaunchArgs:
    """Arguments of Launch.

    A changed `manifest` text runs the launch again; `bucket` holds the manifest object. `trigger`: another value than
    in the last `up` replaces the resource, which launches a new run (trainyard.models.run.launch_trigger).
    """

    scope: Scope
    settings: LaunchSettings
    trigger: str
    manifest: pulumi.Input[str]
    bucket: pulumi.Input[str]


class Launch(pulumi.ComponentResource):
    """Run `trainyard launch`. `result` is the last line of its stdout, a JSON object.

    The command runs in the folder of the program, which contains `launcher`. Any changed input runs `update`, so the
    inputs contain no time and no absolute path. `trainyard launch --update`
    decides whether to do nothing, add nodes to the current run or start a new run. A replacement runs `delete` first:
    otherwise `trainyard stop` would end the new run.
    """

    result: pulumi.Output[str]

    def __init__(self, name: str, args: LaunchArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Launch", name, None, opts)
        # Resource Groups Tagging may not list a bucket that was created a minute ago, so pass the URI.
        target = pulumi.Output.from_input(args.bucket).apply(
            lambda bucket: shlex.join(["--stack", args.scope.stack, "--manifest", manifest_uri(bucket)])
        )
        # The command inherits the environment of the shell, not the configuration of the provider.
        profile = pulumi.Config("aws").get("profile")
        environment = {"AWS_REGION": args.scope.region, **({"AWS_PROFILE": profile} if profile else {})}
        digest = pulumi.Output.from_input(args.manifest).apply(lambda text: hashlib.sha256(text.encode()).hexdigest())
        # With `exec` the provider's shell is the launcher, so that the launcher ends when the provider kills its shell.
        launcher = "exec ./launcher"
        launch = pulumi.Output.concat(launcher, " launch ", target, " --sha256 ", digest, *_options(args))
        command = local.Command(
            name,
            create=launch,
            update=pulumi.Output.concat(launch, " --update"),
            delete=pulumi.Output.concat(launcher, " stop ", target),
            environment=environment,
            add_previous_output_in_env=False,  # a long log in the environment makes later calls fail
            triggers=[args.trigger, again(args.settings)],
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.result = command.stdout
        self.register_outputs({"result": self.result})


def _options(args: LaunchArgs) -> list[str]:
    """Return the options of `trainyard launch` that follow from the settings, each with a space before it."""
    options = ["--trigger", args.trigger]
    if value := again(args.settings):
        options += ["--again", value]
    if args.settings.replace_running:
        options.append("--replace-running")
    if args.settings.wait is not None:
        options.append("--wait" if args.settings.wait else "--no-wait")
    if not args.settings.resume_replaced:
        options.append("--no-resume-replaced")
    return [f" {shlex.quote(option)}" for option in options]
