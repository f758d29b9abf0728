"""The file of a running emulated account: its address and its secrets, which are new for each account."""

import secrets
import string
from pathlib import Path
from typing import Literal

from pydantic import Field

from rehearsal.private_files import write_private_file
from trainyard.base import StrictModel

FILE_NAME = "account.json"  # in the folder of the account
FILE_VARIABLE = "REHEARSAL_ACCOUNT"
"""Environment variable with the path of the file, for a program that uses a running account."""
TOKEN_HEADER = "X-Rehearsal-Token"  # noqa: S105 (the name of a header)
_ID_LENGTH, _SECRET_LENGTH = 20, 40
_ID_LETTERS = string.ascii_uppercase + "234567"

EC2_KEY_PREFIX = "AKIAECTWO"
PrincipalName = Literal["operator", "adapter", "ec2"]


class AccessKey(StrictModel):
    """A long-term access key: the id has 20 characters and the secret 40, as those of IAM."""

    id: str = Field(description="Access key id. Its beginning names the principal.")
    secret: str = Field(description="Secret access key.", repr=False)

    @classmethod
    def create(cls, prefix: str) -> "AccessKey":
        """Return a new random key."""
        suffix = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH - len(prefix)))
        return cls(id=prefix + suffix, secret=secrets.token_urlsafe(_SECRET_LENGTH)[:_SECRET_LENGTH])


class AccountSecrets(StrictModel):
    """The keys of the account's principals, and the token of its control API."""

    operator: AccessKey = Field(description="Key of the user of the rehearsal.")
    adapter: AccessKey = Field(description="Key of the engine, whose calls the journal distinguishes.")
    ec2: AccessKey = Field(description="Key with which the hypervisor assumes roles for instances, as EC2 does.")
    token: str = Field(description="Value of TOKEN_HEADER in requests of the control API.", repr=False)

    @classmethod
    def create(cls) -> "AccountSecrets":
        """Return new random secrets."""
        return cls(
            operator=AccessKey.create("AKIAOPERATOR"),
            adapter=AccessKey.create("AKIAADAPTER"),
            ec2=AccessKey.create(EC2_KEY_PREFIX),
            token=secrets.token_urlsafe(32),
        )

    def key(self, principal: PrincipalName) -> AccessKey:
        """Return the key of a principal."""
        return {"operator": self.operator, "adapter": self.adapter, "ec2": self.ec2}[principal]

    def find(self, key_id: str) -> AccessKey | None:
        """Return the key with this id."""
        return next((key for key in (self.operator, self.adapter, self.ec2) if key.id == key_id), None)


class AccountFile(StrictModel):
    """The content of the file. Its mode is 0600: only the user who started the account can use it."""

    endpoint: str = Field(description="URL of the emulated AWS on the loopback interface.")
    node_endpoint: str = Field(description="URL for nodes: a request to it comes from the node with the credentials.")
    region: str = Field(description="Region whose default VPC exists from the start.")
    uses_loopback: bool = Field(description="Whether instances have loopback addresses.")
    journal: Path = Field(description="File with one JSON line per API call.")
    secrets: AccountSecrets = Field(description="Keys and token.")

    def write(self, file: Path) -> None:
        """Write the file, complete from the first moment."""
        write_private_file(file, self.model_dump_json())

    @classmethod
    def read(cls, file: Path) -> "AccountFile":
        """Read the file. Raises OSError if it cannot be read, ValueError if it is no such file."""
        return cls.model_validate_json(file.read_text())
