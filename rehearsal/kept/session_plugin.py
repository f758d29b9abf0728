"""Replaces AWS's session-manager-plugin in a kept rehearsal: `python -m rehearsal.kept.session_plugin FOLDER ...`.

It has the arguments of the plugin, opens a shell in the node of the rehearsal in FOLDER instead of a connection to SSM,
and terminates the session afterwards. Source of arguments and output: github.com/aws/session-manager-plugin,
src/sessionmanagerplugin/session/session.go, and its issue 59 (EXIT_CODE).
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import boto3

from rehearsal.kept.node_shell import NodeShell, node_shell
from trainyard.models.kept_rehearsal import find_kept_rehearsal

VERSION = "1.2.707.0"  # version of the plugin that this program replaces
RESPONSE_VARIABLE = "AWS_SSM_START_SESSION_RESPONSE"
_NON_INTERACTIVE = "AWS-StartNonInteractiveCommand"


def main(folder: Path, arguments: list[str]) -> int:
    """Run the plugin. Returns its exit status: 0 also after a failed command, as the plugin does."""
    if arguments == ["--version"]:
        print(VERSION)
        return 0
    text, region, _, _, request_text, endpoint = arguments
    response = json.loads(os.environ.pop(RESPONSE_VARIABLE) if text == RESPONSE_VARIABLE else text)
    session, request = response["SessionId"], json.loads(request_text)
    kept = find_kept_rehearsal(folder)
    if kept is None:
        print(f"the rehearsal in {folder} is not kept any more", file=sys.stderr)
        return 1
    print(f"\nStarting session with SessionId: {session}", flush=True)
    try:
        shell = node_shell(folder, kept.backend, request["Target"])
        signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to the program in the node, too
        _run(shell, request)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        boto3.client("ssm", region_name=region, endpoint_url=endpoint).terminate_session(SessionId=session)
        print(f"\n\nExiting session with sessionId: {session}.\n", flush=True)
    return 0


def _run(shell: NodeShell, request: dict[str, Any]) -> None:
    parameters = request.get("Parameters", {})
    status = shell.run(
        " ".join(parameters["command"]) if "command" in parameters else None, os.environ.get("TERM", "dumb")
    )
    is_separate = parameters.get("separateOutputStream", ["false"])[0].lower() == "true"
    if request.get("DocumentName") == _NON_INTERACTIVE and is_separate:
        print(f"EXIT_CODE: {status}", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
