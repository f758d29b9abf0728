"""A program in place of the Pulumi CLI, for tests of the selftest: creates and deletes a small stack with boto3.

`python -m tests.trainyard.operations.selftest_pulumi FOLDER COMMAND ...`: writes each command to FOLDER/calls.jsonl.
FOLDER/changes.json changes the n-th call of a command: `{"up 2": {"exit": 1, "output": "error: ...", "sleep": 60}}`.
"""

import json
import os
import sys
import time
from pathlib import Path


def main(folder: Path, argv: list[str]) -> int:
    """Execute one command; return its exit status."""
    command = argv[0]
    calls = folder / "calls.jsonl"
    environment = {name: value for name, value in os.environ.items() if name.startswith("PULUMI_")}
    with calls.open("a") as file:
        file.write(json.dumps({"argv": argv, "environment": environment, "cwd": str(Path.cwd())}) + "\n")
    number = sum(json.loads(line)["argv"][0] == command for line in calls.read_text().splitlines())
    changes = folder / "changes.json"
    change = json.loads(changes.read_text()).get(f"{command} {number}", {}) if changes.exists() else {}
    sys.stdout.write(change.get("output", "") + "\n")
    sys.stdout.flush()
    time.sleep(change.get("sleep", 0))
    if "exit" in change:
        return int(change["exit"])
    if argv[:2] == ["stack", "init"] or command in ("version", "cancel", "preview") or "--expect-no-changes" in argv:
        return 0
    from tests.trainyard.operations.selftest_stack import Stack  # takes a second, which other calls do not need

    cwd = Path(argv[argv.index("--cwd") + 1]) if "--cwd" in argv else Path.cwd()
    stack = Stack(cwd, argv[argv.index("--stack") + 1])
    if command == "up":
        stack.up(change)
    elif command == "destroy":
        stack.destroy()
    else:
        sys.stdout.write(json.dumps(stack.outputs()))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
