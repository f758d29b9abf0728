"""`python -m rehearsal.aws --account-file F --journal J [--addresses A] [--region R] [--port N] [--with-parent]`."""

import argparse
import os
import signal
import sys
import threading
from ipaddress import IPv4Network
from pathlib import Path

# moto reads these at import or at first use.
_MOTO = {
    "MOTO_DISABLE_GLOBAL_CORS": "true",
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",  # public_images.py registers the images
    "MOTO_ENABLE_AMI_VALIDATION": "true",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
    "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",  # policies such as AmazonSSMManagedInstanceCore can be attached
}


def main() -> None:
    """Serve an emulated account until SIGTERM or SIGINT, or until standard input closes (--with-parent)."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.aws", description="An emulated AWS account.")
    parser.add_argument(
        "--account-file",
        type=Path,
        required=True,
        help="file that receives addresses and keys once the server listens",
    )
    parser.add_argument("--journal", type=Path, required=True, help="file that receives one JSON line per API call")
    parser.add_argument("--addresses", type=IPv4Network, help="network of the instances' private addresses")
    parser.add_argument("--region", default="us-east-1", help="region whose default VPC exists from the start")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: a free port")
    parser.add_argument("--with-parent", action="store_true", help="exit when standard input closes")
    args = parser.parse_args()

    os.environ.update(_MOTO)
    os.environ.pop(
        "MOTO_ACCOUNT_ID", None
    )  # it would merge all callers into one account, but tests need buckets of other accounts
    from rehearsal.aws.account_file import AccountFile, AccountSecrets
    from rehearsal.aws.http import make_server
    from rehearsal.aws.journal import Journal
    from rehearsal.aws.server import AwsApplication

    account_secrets = AccountSecrets.create()
    try:
        application = AwsApplication(Journal(args.journal), args.region, args.addresses, account_secrets)
    except ValueError as error:
        parser.error(str(error))
    server, nodes = make_server(application, args.port), make_server(application.serve_nodes, 0)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    if args.with_parent:
        threading.Thread(target=_stop_at_end_of_input, args=[stopped], daemon=True).start()
    for each in (server, nodes):
        threading.Thread(target=each.serve_forever, daemon=True).start()

    AccountFile(
        endpoint=f"http://127.0.0.1:{server.server_port}",
        node_endpoint=f"http://127.0.0.1:{nodes.server_port}",
        region=args.region,
        uses_loopback=args.addresses is not None,
        journal=args.journal,
        secrets=account_secrets,
    ).write(args.account_file)
    stopped.wait()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads of open connections; no state is saved


def _stop_at_end_of_input(stopped: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopped.set()


if __name__ == "__main__":
    main()
