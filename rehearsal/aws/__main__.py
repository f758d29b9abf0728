"""`python -m rehearsal.aws --port-file F --journal J [--addresses NETWORK] [--region R] [--port N] [--with-parent]`."""

import argparse
import os
import signal
import sys
import threading
from ipaddress import IPv4Network
from pathlib import Path

# moto reads these when it is imported, or at its first use.
_MOTO = {
    "MOTO_DISABLE_GLOBAL_CORS": "true",
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # the images are ours
    "MOTO_ENABLE_AMI_VALIDATION": "true",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
    "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",  # AmazonSSMManagedInstanceCore and its like can be attached
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rehearsal.aws", description="An emulated AWS account.")
    parser.add_argument("--port-file", type=Path, required=True, help="file that receives the port, once listening")
    parser.add_argument("--journal", type=Path, required=True, help="file that receives one JSON line an API call")
    parser.add_argument("--addresses", type=IPv4Network, help="network of the instances' private addresses")
    parser.add_argument("--region", default="us-east-1", help="region whose default VPC is there from the start")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input ends")
    args = parser.parse_args()

    os.environ.update(_MOTO)
    os.environ.pop("MOTO_ACCOUNT_ID", None)  # it would make every caller one account; bucket names are taken by others
    from rehearsal.aws.http import make_server
    from rehearsal.aws.journal import Journal
    from rehearsal.aws.server import Account

    try:
        account = Account(Journal(args.journal), args.region, args.addresses)
    except ValueError as error:
        parser.error(str(error))
    server = make_server(account, args.port)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    if args.with_parent:
        threading.Thread(target=_end_with_input, args=[ended], daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()

    partial = args.port_file.with_suffix(".partial")
    partial.write_text(str(server.server_port))
    partial.rename(args.port_file)
    ended.wait()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # connections of clients are still open in their threads, and nothing here is kept


def _end_with_input(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()


if __name__ == "__main__":
    main()
