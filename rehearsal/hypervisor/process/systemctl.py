"""`systemctl` on a node that is a folder: asks the node's init. Copied to `<root>/usr/bin/systemctl`; stdlib only."""

import json
import os
import socket
import sys


def main() -> int:
    os.chdir(os.path.join(os.environ["TRAINYARD_ROOT"], "run"))  # noqa: PTH118 (starts often: no pathlib)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect("init")
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(sys.argv[1:]).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
    sys.stdout.write(answer["text"])
    code: int = answer["code"]
    return code


if __name__ == "__main__":
    sys.exit(main())
