"""Writing the image into a stack's file changes no other line."""

from pathlib import Path

import pytest
import yaml

from trainyard.config.project import read_project
from trainyard.errors import InputError
from trainyard.operations.stack_file import StackFile, deploy_or_correct, with_image

PROJECT = read_project(Path(__file__).parents[3])
STACKS = sorted((Path(__file__).parents[3] / "stacks").glob("Pulumi.*.yaml"))


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_image_adds_a_line_to_every_stack_of_the_project(path: Path) -> None:
    before = path.read_text()
    after = with_image(before, "ami-1")
    lines = after.splitlines()
    (added,) = [line for line in lines if line.strip() == "image: ami-1"]
    lines.remove(added)
    assert lines == before.splitlines()
    settings = yaml.safe_load(after)["config"]["trainyard:cluster"]
    assert settings == {**yaml.safe_load(before)["config"]["trainyard:cluster"], "image": "ami-1"}


def stack_text(settings: str) -> str:
    return f"# above\nconfig:\n  aws:region: us-east-1\n  trainyard:cluster:{settings}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "\n    image: debian-12  # note\n    instance_type: a\n",
            "\n    image: ami-1  # note\n    instance_type: a\n",
        ),
        ("\n    instance_type: a\n    image: 'ami-0'\n", "\n    instance_type: a\n    image: ami-1\n"),
        (
            "\n    instance_type: a   # note\n    nodes: 2",
            "\n    instance_type: a   # note\n    image: ami-1\n    nodes: 2",
        ),
        ("\n    instance_type: a", "\n    instance_type: a\n    image: ami-1"),
        (" {instance_type: a, nodes: 2}\n", " {image: ami-1, instance_type: a, nodes: 2}\n"),
        (" {nodes: 2, image: ubuntu-24.04}\n", " {nodes: 2, image: ami-1}\n"),
    ],
)
def test_only_the_image_changes(before: str, after: str) -> None:
    assert with_image(stack_text(before), "ami-1") == stack_text(after)


def test_unchanged_image_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.a.yaml"
    path.write_text(stack_text("\n    instance_type: a\n"))
    path.chmod(0o640)
    file = StackFile(path)
    assert file.image is None
    assert file.write_image("ami-1")
    assert file.image == "ami-1"
    assert not file.write_image("ami-1")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config: {}\n", "no mapping config.trainyard:cluster"),
        (stack_text(" 3\n"), "no mapping config.trainyard:cluster"),
        (stack_text("\n    nodes: 2\n"), "has no key instance_type"),
        ("config: [\n", "expected the node content"),
        (
            "base: &base {instance_type: a, nodes: 1}\nconfig:\n  trainyard:cluster: *base\nother: *base\n",
            "without changing another setting",
        ),
    ],
)
def test_file_that_cannot_be_changed_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.a.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        StackFile(path)
    assert path.read_text() == text


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--file = .*No such file"):
        StackFile(tmp_path / "none.yaml")
    assert list(tmp_path.iterdir()) == []


def test_name_similar_to_another_stack_is_corrected_and_not_repeated() -> None:
    assert deploy_or_correct("lcoal", PROJECT) == "Did you mean local? Correct the name"
    assert deploy_or_correct("local", PROJECT) == "Deploy the stack first (trainyard up -s local)"
    fix = "Correct the name (stacks/ has no file of it), or deploy the stack first (trainyard up -s selftest-1a2b)"
    assert deploy_or_correct("selftest-1a2b", PROJECT) == fix
