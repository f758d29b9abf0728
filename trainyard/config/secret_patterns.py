"""Recognize secrets in settings and files: by the name of a variable or a file, or by the format of a credential.

Sources of the formats:
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html (unique id prefixes),
https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github,
https://docs.gitlab.com/security/tokens/, https://huggingface.co/docs/hub/security-tokens, RFC 7468 (private keys).
"""

import fnmatch
import re
from pathlib import PurePosixPath

# Parts of names before TOKEN and KEY that are not secret: special tokens, and keys of a dictionary or a table.
_BEFORE_TOKEN = {"PAD", "EOS", "BOS", "UNK", "MASK", "SEP", "CLS", "STOP", "START", "END", "IMAGE", "AUDIO", "VIDEO"}
_BEFORE_KEY = {
    *("PUBLIC", "PRIMARY", "FOREIGN", "SORT", "PARTITION", "CACHE", "COLUMN", "FIELD", "FEATURE", "LABEL", "TARGET"),
    *("TEXT", "IMAGE", "AUDIO", "VIDEO", "INPUT", "OUTPUT", "PROMPT", "RESPONSE", "METRIC", "DATA"),
}
_PASSWORD = re.compile("PASSWORD|PASSWD|PASSPHRASE|(SECRETS?|CREDENTIALS?)$")
_TOKEN = re.compile("TOKEN$|(^|_)PAT$")
_KEY = re.compile("(^|_)KEY$|APIKEY$")
_PLAIN_VALUE = re.compile(r"|[-+]?[\d.]+(e[-+]?\d+)?|true|false|yes|no|on|off|none|<[^<>]*>|\[[A-Z]+\]", re.IGNORECASE)
# Where a secret is, and not the secret.
_REFERENCE = re.compile(r"~?(/[\w.@$-]+){2,}|arn:aws[\w-]*:.+|\$\{?\w+\}?|s3://.+")

_CREDENTIALS = {
    "an AWS access key id": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "a GitLab token": r"\bgl(?:pat|dt|rt|ptt)-[\w-]{20,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a Slack token": r"\bxox[abprs]-[\w-]{10,}",
    "an API key": r"\bsk-[\w-]{20,}|\bAIza[\w-]{35}",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----",
    "a password in a URL": r"\b[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/:@${}]+@",
}
_CREDENTIAL_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _CREDENTIALS.items()}
# A line of a key file, also as a string of JSON. Code that compares with the marker has a quote after it.
_PRIVATE_KEY_IN_FILE = re.compile(
    rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----(?:\r?\n|\\n)|^PuTTY-User-Key-File-", re.MULTILINE
)

# Patterns of file names, and of the end of a path.
_SECRET_FILES = (
    *(".env", ".env.*", ".netrc", "_netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass"),
    *(".my.cnf", ".htpasswd", ".boto", ".s3cfg", ".vault-token", "kaggle.json", "*.p12", "*.pfx", "*.jks", "*.ppk"),
    *("*.kdbx", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"),
    *(".aws/*", ".aws/*/*/*", ".aws/*/*", ".kube/config", ".docker/config.json", ".config/gcloud/*", ".azure/*"),
    *(".huggingface/token", "huggingface/token", "huggingface/stored_tokens", ".pulumi/credentials.json"),
)


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether a variable has a secret, by its name: `HF_TOKEN`, `WANDB_API_KEY`, `DB_PASSWORD`.

    Not secret are numbers and booleans of tokens and keys, paths, ARNs, references to variables, special tokens of a
    tokenizer (`PAD_TOKEN`, `<s>`) and keys of a dictionary (`LABEL_KEY`).
    """
    name = name.upper().replace("-", "_")
    if not value or _REFERENCE.fullmatch(value):
        return False
    if _PASSWORD.search(name):
        return True
    *_, previous, _ = ("", *name.split("_"))
    is_token = _TOKEN.search(name) and previous not in _BEFORE_TOKEN
    is_key = _KEY.search(name) and previous not in _BEFORE_KEY
    return bool(is_token or is_key) and not _PLAIN_VALUE.fullmatch(value)


def find_credential(text: str) -> str | None:
    """Return the kind of a credential that the text contains, such as "a GitHub token"; None if it contains none."""
    return next((kind for kind, pattern in _CREDENTIAL_PATTERNS.items() if pattern.search(text)), None)


def is_secret_file(path: PurePosixPath) -> bool:
    """Return whether programs store secrets in files of this path, such as `.aws/credentials` and `.npmrc`."""
    parts = path.as_posix().lower().split("/")
    return any(fnmatch.fnmatchcase("/".join(parts[-1 - pattern.count("/") :]), pattern) for pattern in _SECRET_FILES)


def contains_private_key(content: bytes) -> bool:
    """Return whether the content of a file has a private key in PEM or PuTTY's format."""
    return _PRIVATE_KEY_IN_FILE.search(content) is not None
