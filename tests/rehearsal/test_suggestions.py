"""Misspelled names of the rehearsal's options are reported with similar names."""

from collections.abc import Callable

import pytest

from rehearsal.engine.registry import select_engine
from rehearsal.faults import parse_faults
from rehearsal.hypervisor.registry import select_backend
from rehearsal.profiles import select_profile
from tests.rehearsal.conftest import ROOT
from trainyard.config.stack_config import find_stack_file
from trainyard.errors import InputError

NAMES: dict[str, tuple[Callable[[str], object], str, str]] = {
    "fault": (lambda name: parse_faults([name]), "capcity,limit=0", "capacity"),
    "key of a fault": (lambda name: parse_faults([name]), "capacity,limt=0", "limit"),
    "profile": (select_profile, "realstic", "realistic"),
    "engine": (select_engine, "plumi", "pulumi"),
    "backend": (select_backend, "proces", "process"),
    "stack": (lambda name: find_stack_file(name, ROOT / "stacks"), "locl", "local"),
}


@pytest.mark.parametrize("option", NAMES)
def test_similar_names_are_suggested(option: str) -> None:
    select, name, suggestion = NAMES[option]
    with pytest.raises(InputError, match=rf"Did you mean {suggestion}( or \S+)*\? Use"):
        select(name)
