"""One value is written into a stack's file, and nothing else in it changes."""

from pathlib import Path

import pytest
import yaml

from trainyard.base import InputError
from trainyard.operations.stack_file import StackFile, path_of, with_image

STACKS = sorted((Path(__file__).parents[3] / "stacks").glob("Pulumi.*.yaml"))


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_every_shipped_stack_gains_one_line(path: Path) -> None:
    before = path.read_text()
    after = with_image(before, "ami-1")
    lines = after.splitlines()
    (added,) = [line for line in lines if line.strip() == "image: ami-1"]
    lines.remove(added)
    assert lines == before.splitlines()
    settings = yaml.safe_load(after)["config"]["trainyard:cluster"]
    assert settings == {**yaml.safe_load(before)["config"]["trainyard:cluster"], "image": "ami-1"}


def in_file(settings: str) -> str:
    return f"# above\nconfig:\n  aws:region: us-east-1\n  trainyard:cluster:{settings}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "\n    image: debian-12  # why\n    instance_type: a\n",
            "\n    image: ami-1  # why\n    instance_type: a\n",
        ),
        ("\n    instance_type: a\n    image: 'ami-0'\n", "\n    instance_type: a\n    image: ami-1\n"),
        (
            "\n    instance_type: a   # one\n    nodes: 2",
            "\n    instance_type: a   # one\n    image: ami-1\n    nodes: 2",
        ),
        ("\n    instance_type: a", "\n    instance_type: a\n    image: ami-1"),
        (" {instance_type: a, nodes: 2}\n", " {image: ami-1, instance_type: a, nodes: 2}\n"),
        (" {nodes: 2, image: ubuntu-24.04}\n", " {nodes: 2, image: ami-1}\n"),
    ],
)
def test_the_value_alone_changes(before: str, after: str) -> None:
    assert with_image(in_file(before), "ami-1") == in_file(after)


def test_the_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.a.yaml"
    path.write_text(in_file("\n    instance_type: a\n"))
    path.chmod(0o640)
    file = StackFile(path)
    assert file.image is None
    assert file.write_image("ami-1")
    assert file.image == "ami-1"
    assert not file.write_image("ami-1")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("config: {}\n", "no mapping config.trainyard:cluster"),
        (in_file(" 3\n"), "no mapping config.trainyard:cluster"),
        (in_file("\n    nodes: 2\n"), "has no instance_type in it"),
        ("config: [\n", "expected the node content"),
        (
            "base: &base {instance_type: a, nodes: 1}\nconfig:\n  trainyard:cluster: *base\nother: *base\n",
            "without changing something else",
        ),
    ],
)
def test_a_file_that_can_not_be_written_to_is_told_before_anything_else(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.a.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        StackFile(path)
    assert path.read_text() == text


def test_an_absent_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--file = .*No such file"):
        StackFile(tmp_path / "none.yaml")
    assert list(tmp_path.iterdir()) == []


def test_where_it_lies() -> None:
    assert path_of("local").exists()
