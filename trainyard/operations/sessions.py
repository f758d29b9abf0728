"""Shells and commands on nodes with SSM Session Manager, as `aws ssm start-session` runs them.

The AWS CLI calls StartSession and starts AWS's session-manager-plugin with the response; this module does the same, so
that only the plugin must be installed. Source: awscli/customizations/sessionmanager.py of github.com/aws/aws-cli.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.operations.cluster import Cluster
from trainyard.operations.head import find_head
from trainyard.operations.worker_groups import WorkerGroups

PLUGIN = "session-manager-plugin"
HEAD = "head"
_INSTALL = (
    "https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-working-with-install-plugin.html"
)
# The last version without the environment variable for the response. Arguments are visible to every local user.
_LAST_OUTDATED = (1, 2, 497)
_RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
_COMMAND_DOCUMENT = "AWS-StartNonInteractiveCommand"
# Lines of the plugin around the output of a command. Source of EXIT_CODE: aws/session-manager-plugin issue 59.
_EXIT_CODE = re.compile(r"EXIT_CODE: (\d+)\n?$")
_STARTED, _EXITING = "Starting session with SessionId: ", "Exiting session with sessionId: "


def find_node(cluster: Cluster, node: str | None) -> str:
    """Return the instance id of a node: `head`, the number of a worker, or an instance id; None: the first worker.

    Workers count from 0 in the order of the last attempt, whose first node has rank 0. Raises InputError when the
    cluster has no such node.
    """
    if node == HEAD:
        return _require_head(cluster)
    workers = _workers(cluster)
    if node is not None and node.startswith("i-"):
        if node in workers or node in _stack_instances(cluster):
            return node
    elif node is None or node.isdecimal():
        index = int(node or 0)
        if index < len(workers):
            return workers[index]
        if not workers:
            reason, fix = (
                "the stack has no worker nodes now",
                f"Use {HEAD}, or start a run: trainyard run -s {cluster.stack}",
            )
            raise InputError([Problem("NODE", node, reason, fix, "node_missing")])
    numbers = (
        f", a number below {len(workers)}, or one of {', '.join(workers)}" if workers else "; there are no workers"
    )
    fix = f"{did_you_mean(node or '', [HEAD, *workers])}Use {HEAD}{numbers}"
    raise InputError([Problem("NODE", node, "the stack has no such node", fix, "node_missing")])


def _require_head(cluster: Cluster) -> str:
    head = find_head(cluster)
    if head is None:
        reason, fix = "AWS replaces the head now", "Repeat the command in a few minutes, or use an instance id"
        raise InputError([Problem("NODE", HEAD, reason, fix, "node_missing")])
    return head


def _workers(cluster: Cluster) -> list[str]:
    """Return the workers: those of the last attempt in its order, then the others."""
    members, run = WorkerGroups(cluster.manifest).members(), cluster.current_run()
    control = cluster.control(run.run) if run else None
    ranked = [name for name in (control.nodes if control else ()) if name in members]
    return [*ranked, *sorted(set(members) - set(ranked))]


def _stack_instances(cluster: Cluster) -> list[str]:
    """Return the running instances with the stack's tag, such as an image builder."""
    filters = tags.tag_filters({tags.STACK: cluster.stack_tag})
    pages = (
        client("ec2", cluster.region)
        .get_paginator("describe_instances")
        .paginate(Filters=[*filters, {"Name": "instance-state-name", "Values": ["running"]}])
    )
    return [each["InstanceId"] for page in pages for group in page["Reservations"] for each in group["Instances"]]


def require_plugin() -> str:
    """Return the path of the Session Manager plugin. Raises InputError when it is missing or too old."""
    path = shutil.which(PLUGIN)
    fix = f"Install it ({_INSTALL}), or add its folder to PATH"
    if path is None:
        raise InputError([Problem("PATH", None, f"AWS's {PLUGIN} is not on PATH", fix, "session_plugin_missing")])
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers <= _LAST_OUTDATED:
        reason = f"version {version or 'unknown'} is too old: a version after 1.2.497 is required"
        raise InputError([Problem(PLUGIN, path, reason, fix, "session_plugin_outdated")])
    return path


class Session:
    """A session on an instance, started but not connected. Raises RuntimeError when SSM cannot start it."""

    def __init__(self, region: str, instance: str, command: Sequence[str] = ()) -> None:
        """Without a command it is an interactive shell. Several arguments are quoted, one is a line for the shell."""
        self._plugin = require_plugin()
        ssm, request = client("ssm", region), {"Target": instance, **_document(command)}
        try:
            response = ssm.start_session(**request)
        except ClientError as error:
            if error.response["Error"]["Code"] != "TargetNotConnected":
                raise
            raise RuntimeError(
                f"{instance} is not connected to SSM Session Manager: it does not run, still boots, or cannot reach "
                "the SSM endpoints. Try again in a minute"
            ) from error
        content = {key: response[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
        self._environment = {**os.environ, _RESPONSE: json.dumps(content)}
        profile = os.environ.get("AWS_PROFILE", "")
        self._arguments = [
            PLUGIN,
            _RESPONSE,
            region,
            "StartSession",
            profile,
            json.dumps(request),
            ssm.meta.endpoint_url,
        ]

    def open_shell(self) -> None:
        """Replace this process by the plugin, which connects the terminal."""
        os.execve(self._plugin, self._arguments, self._environment)  # noqa: S606

    def run(self) -> Iterator[str | int]:
        """Run the command. Yields the lines of its stdout, then its exit status. Its stderr goes to stderr.

        Raises RuntimeError when the plugin fails or the session ends before the command.
        """
        process = subprocess.Popen(
            [self._plugin, *self._arguments[1:]],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        with process:
            exit_status = yield from _relay(process.stdout)
        if exit_status is None:
            raise RuntimeError(
                f"the session ended without an exit status of the command ({PLUGIN}: {process.returncode})"
            )
        yield exit_status


def _relay(lines: Iterable[str]) -> Generator[str, None, int | None]:
    """Yield the output of the command, without the plugin's own lines around it. Returns the exit status, if any."""
    has_started = has_ended = False
    pending: list[str] = []  # a line that looks like the exit status, and the blank lines after it
    for line in lines:  # to the end, because the plugin fails if it cannot write
        if not has_started:
            has_started = line.startswith(_STARTED)
        elif has_ended or (pending and line.startswith(_EXITING)):
            has_ended = True
        elif pending and not line.strip():
            pending.append(line)
        else:
            yield from pending  # the command itself has printed them
            pending = [line] if _EXIT_CODE.search(line) else []
            if not pending:
                yield line
    match = _EXIT_CODE.search(pending[0]) if pending else None
    if match is None:
        return None
    if match.start():  # output without a line end
        yield pending[0][: match.start()]
    return int(match[1])


def _document(command: Sequence[str]) -> dict[str, Any]:
    if not command:
        return {}
    line = command[0] if len(command) == 1 else shlex.join(command)
    parameters = {"command": [line], "separateOutputStream": ["true"]}
    return {"DocumentName": _COMMAND_DOCUMENT, "Parameters": parameters}
