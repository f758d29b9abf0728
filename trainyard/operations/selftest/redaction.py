"""Redacts private data in the report of `trainyard selftest`, because users send the report to others."""

import getpass
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import boto3

PrivateText = tuple[str, str]
_SECRET_NAME = re.compile("SECRET|TOKEN|PASSWORD|PASSPHRASE|ACCESS_KEY")
_MIN_SECRET_LENGTH = 8
_COMMON_LOGINS = ("root", "ubuntu", "admin", "user")  # words of other texts
_PRIVATE_NAMES = r"[\w.-]*(?:secret|password|passphrase|token(?!s)|credential)[\w.-]*"
_PATTERNS = (
    # ARNs of IAM and STS end in the name of a user, role or session.
    (r"\barn:aws[\w-]*:(iam|sts)::\d{12}:([\w-]+)/[^\s\"',)\]]+", r"arn:aws:\1::<account>:\2/<name>"),
    (r"(?<![\w-])\d{12}(?![\w-])", "<account>"),
    (r"\b(?:AKIA|ASIA|AIDA|AROA)[A-Z0-9]{12,}\b", "<access-key>"),
    (rf"(?i)({_PRIVATE_NAMES}[\"']?\s*[:=]\s*[\"']?)[^\s\"',]+", r"\1<secret>"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<email>"),
    (r"\bip-\d{1,3}(?:-\d{1,3}){3}\b", "<ip>"),
    (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)", "<ip>"),
    (r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])", "<ip>"),
    (r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}(?![\w:])", "<ip>"),
    (r"(/home/|/Users/)[^/\s:\"']+", r"\1<user>"),
)


def private_texts(identity: Mapping[str, str]) -> list[PrivateText]:
    """Return the texts of this machine and account that a report does not contain, with their replacements.

    `identity`: the response of sts:GetCallerIdentity.
    """
    credentials = boto3.Session().get_credentials()
    frozen = list(credentials.get_frozen_credentials()) if credentials else []
    secret_values = [*frozen, *(value for name, value in os.environ.items() if _SECRET_NAME.search(name))]
    arn, login = identity["Arn"], getpass.getuser()
    return [
        (identity["Account"], "<account>"),
        (arn, "<caller>"),
        *((name, "<name>") for name in arn.partition("/")[2].split("/")),
        *((value, "<secret>") for value in secret_values if value and len(value) >= _MIN_SECRET_LENGTH),
        (str(Path.home()), "~"),
        *([] if login in _COMMON_LOGINS else [(login, "<user>")]),
        (platform.node(), "<host>"),
    ]


def redact(value: Any, private: Iterable[PrivateText] = ()) -> Any:
    """Return a JSON value whose texts contain no account ids, user names, e-mail and IP addresses and secrets.

    `private`: texts that are replaced wherever they occur, with their replacements.
    """
    if isinstance(value, dict):
        return {key: redact(each, private) for key, each in value.items()}
    if isinstance(value, list):
        return [redact(each, private) for each in value]
    if isinstance(value, str):
        # Longest first, because one may contain another.
        for text, name in sorted(private, key=lambda pair: -len(pair[0])):
            value = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", name, value) if text else value
        for pattern, replacement in _PATTERNS:
            value = re.sub(pattern, replacement, value)
    return value
