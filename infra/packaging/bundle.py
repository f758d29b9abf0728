"""Pack the bundle: the playbooks and Python code that nodes download."""

from collections.abc import Mapping
from pathlib import Path

from infra.packaging.archive import Entry, Packed, pack
from trainyard.models.schemas import schema_text

FOLDERS = ("playbooks", "trainyard", "trainer")
FILES = ("constraints.txt",)
# Files that nodes do not use. Changing them does not change the bundle.
OPERATOR_ONLY = frozenset(
    f"trainyard/{name}"
    for name in (
        *("__main__.py", "launcher", "cli", "operations"),
        *(f"config/{name}" for name in ("settings", "validators", "catalog.py", "catalog.json", "prices.py")),
        *(f"config/{name}" for name in ("prices.json", "quotas.py", "cost.py", "loader.py")),
        *(
            "aws/ec2.py",
            "aws/placement.py",
            "aws/capacity_blocks.py",
            "aws/tagged_resources.py",
            "models/report.py",
            "models/schemas.py",
        ),
    )
)
SCHEMA = "schemas/manifest.schema.json"


def pack_bundle(root: Path, extra: Mapping[str, Entry] | None = None) -> Packed:
    """Pack the static files of the project, and `extra`. The content does not depend on the stack."""
    entries = {SCHEMA: Entry(schema_text("manifest").encode()), **(extra or {})}
    for folder in FOLDERS:
        assert (root / folder).is_dir(), f"{root} has no folder {folder}/"
        for path in (root / folder).rglob("*"):
            parts = path.relative_to(root).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
            operator_only = any("/".join(parts[:depth]) in OPERATOR_ONLY for depth in range(1, len(parts) + 1))
            if path.is_file() and not hidden and not operator_only and path.suffix != ".pyc":
                entries["/".join(parts)] = Entry(path.read_bytes())
    entries.update({name: Entry((root / name).read_bytes()) for name in FILES})
    return pack(entries)
