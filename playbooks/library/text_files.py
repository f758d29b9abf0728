"""Ansible module `text_files`: several small files in one task.

A module costs some 0.3 s for its own start, and the builtin `template` starts two a file: configuration of many small
files would take longer than all else that a play does when there is nothing to do.
"""

import os
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: text_files
short_description: Several small files in one task
description: Writes each file whole, by a rename, where its content, owner or mode differs. Folders are made.
options:
  files:
    description: Absolute path to content.
    type: dict
    required: true
  mode:
    description: Mode of every file, octal.
    type: str
    default: "0644"
"""

RETURN = """
written:
  description: Files that were written.
  type: list
"""


def differs(path: str, content: bytes, mode: int) -> bool:
    """Whether the file must be written."""
    try:
        seen = os.lstat(path)
        with open(path, "rb") as file:  # noqa: PTH123 (a module starts often: no pathlib)
            same = file.read() == content
    except FileNotFoundError:
        return True
    return not same or seen.st_mode & 0o7777 != mode or (seen.st_uid, seen.st_gid) != (os.geteuid(), os.getegid())


def write(path: str, content: bytes, mode: int) -> None:
    """A reader never sees half of it."""
    folder = os.path.dirname(path)  # noqa: PTH120
    os.makedirs(folder, mode=0o755, exist_ok=True)  # noqa: PTH103
    handle, work = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(work, path)  # noqa: PTH105
    except BaseException:
        os.unlink(work)  # noqa: PTH108
        raise


def main() -> None:
    spec: dict[str, Any] = {"files": {"type": "dict", "required": True}, "mode": {"type": "str", "default": "0644"}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    mode = int(module.params["mode"], 8)
    wanted = {path: text.encode() for path, text in module.params["files"].items()}
    if odd := [path for path in wanted if not os.path.isabs(path)]:  # noqa: PTH117
        module.fail_json(msg=f"not absolute paths: {', '.join(odd)}")
    try:
        written = [path for path, content in wanted.items() if differs(path, content, mode)]
        for path in [] if module.check_mode else written:
            write(path, wanted[path], mode)
    except OSError as error:
        module.fail_json(msg=f"can't write {error.filename}: {error.strerror}")
    module.exit_json(changed=bool(written), written=written)


if __name__ == "__main__":
    main()
