"""A failed `trainyard` command of a rehearsal is reported with the command's own error message."""

from types import SimpleNamespace
from typing import Any

import pytest

from rehearsal.stages import Stages
from tests.rehearsal.conftest import ROOT


def test_message_of_a_failed_command_has_one_prefix() -> None:
    context: Any = SimpleNamespace(options=SimpleNamespace(stack="nosuch", root=ROOT))
    with pytest.raises(RuntimeError, match=r"^trainyard reserve failed: --stack = 'nosuch': .* does not exist\."):
        Stages(context).run_cli("reserve", "--yes")
