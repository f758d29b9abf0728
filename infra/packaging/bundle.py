"""Pack the bundle: the playbooks and Python code that nodes download."""

from collections.abc import Mapping
from pathlib import Path

from infra.packaging.archive import Entry, Packed, pack
from infra.packaging.files import list_files, untracked_files
from trainyard.models.schemas import schema_text

FOLDERS = ("playbooks", "trainyard", "trainer")
# Files that nodes do not use. Changing them does not change the bundle.
OPERATOR_ONLY = frozenset(["trainer/plan"]) | frozenset(
    f"trainyard/{name}"
    for name in (
        *("__main__.py", "cli", "operations", "job_source"),
        *(f"config/{name}" for name in ("settings", "validators", "catalog.py", "catalog.json", "prices.py")),
        *(f"config/{name}" for name in ("prices.json", "quotas.py", "cost.py", "loader.py", "project.py")),
        *(
            "aws/ec2.py",
            "aws/placement.py",
            "aws/capacity_blocks.py",
            "aws/tagged_resources.py",
            "models/job.py",
            "models/kept_rehearsal.py",
            "models/report.py",
            "models/schemas.py",
        ),
    )
)
SCHEMA = "schemas/manifest.schema.json"


def pack_bundle(root: Path, extra: Mapping[str, Entry] | None = None) -> Packed:
    """Pack the static files of the project, and `extra`. The content does not depend on the stack."""
    for folder in FOLDERS:
        assert (root / folder).is_dir(), f"{root} has no folder {folder}/"
    names = [name for name in list_files(root, FOLDERS) if not _is_operator_only(name)]
    entries = {name: Entry((root / name).read_bytes()) for name in names}
    return pack({SCHEMA: Entry(schema_text("manifest").encode()), **(extra or {}), **entries})


def files_missing_in_bundle(root: Path) -> list[str]:
    """Return the files that nodes would use if git tracked them, sorted."""
    return [name for name in untracked_files(root, FOLDERS) if not _is_operator_only(name)]


def _is_operator_only(name: str) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:depth]) in OPERATOR_ONLY for depth in range(1, len(parts) + 1))
