"""The vocabulary lint: retired words of names and prose."""

from pathlib import Path

import pytest

from tools.lint.vocabulary import Vocabulary, check


def violations(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return [(violation.line, violation.text) for violation in check(path, Vocabulary())]


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("def hear_event():\n    pass\n", "hear (in hear_event)"),
        ("class ToldNodes:\n    pass\n", "told (in ToldNodes)"),
        ("def start(asked):\n    pass\n", "asked (in asked)"),
        ("found = 1\n", "found (in found)"),
        ("class A:\n    def b(self):\n        self.wanted = 1\n", "wanted (in wanted)"),
        ("for one in []:\n    pass\n", "one (in one)"),
        ("bring_up_minutes = 1\n", "bring_up (in bring_up_minutes)"),
    ],
)
def test_retired_word_in_a_name_is_reported(tmp_path: Path, code: str, word: str) -> None:
    assert word in [text for _, text in violations(tmp_path / "module.py", code)]


def test_retired_phrase_is_reported_with_its_line(tmp_path: Path) -> None:
    text = '"""First line.\n\nAn instance type bears no EFA.\n"""\n'
    assert violations(tmp_path / "module.py", text) == [(3, "bears")]


def test_ansible_task_names_are_checked(tmp_path: Path) -> None:
    assert violations(tmp_path / "main.yml", "- name: Mend the driver\n  apt: {}\n") == [(1, "Mend")]


def test_retired_word_in_a_file_name_is_reported(tmp_path: Path) -> None:
    assert violations(tmp_path / "verdict.py", '"""A module."""\n') == [(1, "verdict (in verdict)")]


def test_standard_names_are_accepted(tmp_path: Path) -> None:
    code = '"""Look up the nodes of a run."""\n\n\ndef look_up_nodes(run_id: str) -> list[str]:\n    return [run_id]\n'
    assert violations(tmp_path / "nodes.py", code) == []
