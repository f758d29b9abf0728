"""`systemctl` on a node of the process backend: sends the command to the node's init process.

`<root>/usr/bin/systemctl` starts it. It imports little, because it starts often.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Run one systemctl command. Returns its exit code."""
    os.chdir(os.path.join(os.environ["TRAINYARD_ROOT"], "run"))  # noqa: PTH118 (importing pathlib takes long)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect("init")
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(sys.argv[1:]).encode() + b"\n")
            stream.flush()
            response = json.loads(stream.readline())
    sys.stdout.write(response["text"])
    code: int = response["code"]
    return code


if __name__ == "__main__":
    sys.exit(main())
