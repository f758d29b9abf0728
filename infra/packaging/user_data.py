"""User data of nodes: a systemd unit that runs the bootstrap at every boot. It does not depend on the job."""

from pathlib import Path
from typing import Literal

import yaml

Role = Literal["head", "worker"]
LIMIT_BYTES = 16 * 1024
BOOTSTRAP = "trainyard/node/bootstrap.py"

_UNIT = """\
[Unit]
Description=Trainyard: configure this node from the stack's bundle
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
Restart=on-failure
RestartSec=10
StandardOutput=journal+console
StandardError=journal+console
ExecStart=/usr/bin/python3 /opt/trainyard/bootstrap.py --role {arguments} --manifest {manifest_uri} \
--region {region} --account {account}

[Install]
WantedBy=multi-user.target
"""


class _Text(str):
    """A string that YAML writes as a literal block."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def user_data(role: Role, group: str | None, manifest_uri: str, region: str, account: str, root: Path) -> str:
    """Return the cloud-config of a node. `group` is the worker group, `root` the folder of the project.

    `account` owns the bucket of the manifest: the bootstrap reads it from no other account.

    cloud-init does not wait for the unit, which waits for the network and retries.
    """
    arguments = role if group is None else f"{role} --group {group}"
    unit = _UNIT.format(arguments=arguments, manifest_uri=manifest_uri, region=region, account=account)
    files = [
        ("/opt/trainyard/bootstrap.py", "0755", (root / BOOTSTRAP).read_text()),
        ("/etc/systemd/system/trainyard-node.service", "0644", unit),
    ]
    config = {
        "write_files": [
            {"path": path, "owner": "root:root", "permissions": mode, "content": _Text(text)}
            for path, mode, text in files
        ],
        "runcmd": [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", "--now", "--no-block", "trainyard-node.service"],
        ],
    }
    text = "#cloud-config\n" + yaml.dump(config, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    size = len(text.encode())
    assert size < LIMIT_BYTES, (
        f"user data of the {role} is {size} bytes, the EC2 limit is {LIMIT_BYTES}: shorten {BOOTSTRAP}"
    )
    return text
