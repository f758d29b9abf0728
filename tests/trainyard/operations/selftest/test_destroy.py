"""`trainyard selftest --destroy` destroys all stacks that earlier selftests left."""

from pathlib import Path

import pytest

from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.operations.progress import Display
from trainyard.operations.selftest import operation
from trainyard.operations.selftest.project import ActionError, SelftestProject


def test_failed_destroy_does_not_keep_the_other_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resources of the other stacks are billed."""
    for name in ("selftest-a", "selftest-b", "selftest-c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Pulumi.yaml").touch()
        (tmp_path / name / f"Pulumi.{name}.yaml").write_text("config: {aws:region: us-east-1}")
    (tmp_path / "selftest-c" / "Pulumi.selftest-c.yaml").unlink()

    def destroy(project: SelftestProject, minutes: float, display: Display) -> None:
        if project.stack == "selftest-a":
            raise ActionError("exit status 1")

    monkeypatch.setattr(operation, "require_pulumi", lambda: "pulumi")
    monkeypatch.setattr(SelftestProject, "destroy", destroy)
    with pytest.raises(ActionError, match=r"selftest-a was not destroyed.*exit status 1\nselftest-c was not destroyed"):
        operation.destroy_existing_stacks(tmp_path, RecordingDisplay())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["selftest-a", "selftest-c"]
