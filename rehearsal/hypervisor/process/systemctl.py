"""`systemctl` and `systemd-run` on a node of the process backend: send the command to the node's init process.

`<root>/usr/bin/systemctl` starts `systemctl.py systemctl ARGUMENT...`. It imports little, because it starts often.
"""

import json
import os
import socket
import sys
import time
from typing import Any


def main() -> int:
    """Run one command. Returns its exit code."""
    os.chdir(os.path.join(os.environ["TRAINYARD_ROOT"], "run"))  # noqa: PTH118 (importing pathlib takes long)
    response = send(sys.argv[1:])
    sys.stdout.write(response["text"])
    sys.stderr.write(response["error"])
    # Without --no-block, systemctl waits until the units have stopped. Source: systemctl(1),
    # https://www.freedesktop.org/software/systemd/man/latest/systemctl.html
    if sys.argv[1:3] == ["systemctl", "stop"] and "--no-block" not in sys.argv:
        for name in sys.argv[3:]:
            while "ActiveState=deactivating" in send(["systemctl", "show", name])["text"]:
                time.sleep(0.05)
    code: int = response["code"]
    return code


def send(command: list[str]) -> dict[str, Any]:
    """Send a command to the init process. Returns its response."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect("init")
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(command).encode() + b"\n")
            stream.flush()
            response: dict[str, Any] = json.loads(stream.readline())
            return response


if __name__ == "__main__":
    sys.exit(main())
