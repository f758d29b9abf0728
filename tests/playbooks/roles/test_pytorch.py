"""The role `pytorch` on a booted machine: uv and an index are real, what is installed stands in for torch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.machines import ROOT, Booted, Play, booted
from tests.polling import eventually
from tests.served import Served
from tests.wheels import STAND_INS

pytestmark = pytest.mark.booted

BUNDLE = "/opt/bundle"
VENV = "/opt/trainyard/job-venv"
CODE = (
    *("__init__", "node/__init__", "node/bootstrap", "node/environments/__init__", "node/environments/node"),
    *("node/environments/wheelhouse", "node/environments/job", "node/environments/installed"),
)
LIST = "torch==2.15.0  # training\ns3torchconnector[dcp]==1.5.0\n"


class Node:
    """A machine with a bundle, and an index that it reaches."""

    def __init__(self, machine: Booted, index: Served) -> None:
        self.machine, self.index, self.sh = machine, index, machine.sh

    def wants(self, requirements: str) -> None:
        self.machine.put(f"{BUNDLE}/trainer/requirements.txt", requirements)

    def run(self, **variables: Any) -> Play:
        return self.machine.role(
            "pytorch", pytorch_bundle=BUNDLE, pytorch_index=f"{self.index.url}/simple", **variables
        )


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = tmp_path_factory.mktemp("pytorch")
    code = {f"{BUNDLE}/trainyard/{name}.py": (ROOT / f"trainyard/{name}.py").read_text() for name in CODE}
    with booted(made / "node", {**code, f"{BUNDLE}/constraints.txt": ""}) as machine:
        torch = STAND_INS[0]
        for wheel in (*STAND_INS, replace(torch, version="2.16.0")):
            wheel.build(made / "index")
        index = Served(made / "index", machine.network)
        index.back()
        node = Node(machine, index)
        node.wants(LIST)
        yield node
        index.close()


def test_it_makes_the_environment_once_from_the_pinned_list(node: Node) -> None:
    first, second = node.run(), node.run()
    assert first.code == 0, first.told
    assert first.changed == ("pytorch : Make the environment from the bundle's pinned requirements",)
    assert (second.code, second.changed) == (0, ())
    assert node.sh(f"{VENV}/bin/python -c 'import torch, sys; print(sys.prefix)'").strip() == VENV
    assert node.sh(f"ls {VENV}/lib/python3.11/site-packages/torch/__pycache__").strip().endswith(".pyc")


def test_another_list_and_a_cut_environment_are_made_anew(node: Node) -> None:
    assert node.run().code == 0
    node.wants(LIST.replace("2.15.0", "2.16.0"))
    assert node.run().code == 0
    version = f"{VENV}/bin/python -c 'from importlib.metadata import version; print(version(\"torch\"))'"
    assert node.sh(version).strip() == "2.16.0"
    node.sh(f"rm {VENV}/made {VENV}/bin/python")
    again = node.run()
    assert (again.code, len(again.changed)) == (0, 1)


def test_an_environment_stays_as_long_as_something_runs_from_it(node: Node) -> None:
    assert node.run().code == 0
    folder = node.sh(f"readlink {VENV}").strip()
    # What it has loaded is known by the files that are mapped: torch's libraries, here one that stands in.
    node.sh(f"cp /usr/lib/x86_64-linux-gnu/libm.so.6 {folder}/lib/")
    load = f"import ctypes, time; ctypes.CDLL('{folder}/lib/libm.so.6'); time.sleep(600)"
    node.sh(f'systemd-run -q --unit job {folder}/bin/python -c "{load}"')
    eventually(lambda: bool(node.sh("grep -l venvs /proc/[0-9]*/maps || true")), "the library in use")
    node.wants(LIST.replace("2.15.0", "2.16.0"))
    assert node.run().code == 0
    assert node.sh(f"readlink {VENV}").strip() != folder
    assert node.sh(f"ls {folder}/made")
    node.sh("systemctl stop job")
    assert node.run().code == 0
    assert node.machine.machine.run("test", "-e", folder).returncode != 0


def test_what_the_index_has_not_is_named(node: Node) -> None:
    node.wants(LIST + "absent==3.1\n")
    failed = node.run()
    assert failed.code != 0
    assert "absent" in failed.failure
    assert node.sh("find /opt/trainyard/venvs -name made") == ""


def test_an_environment_of_the_image_is_kept_and_checked(node: Node) -> None:
    assert node.run().code == 0
    node.sh(f"cp -a {VENV}/ /opt/own")
    asked = len(node.index.asked())
    kept = node.run(pytorch_venv="/opt/own")
    assert (kept.code, kept.changed, len(node.index.asked())) == (0, (), asked)
    node.wants(LIST.replace("2.15.0", "2.16.0"))
    assert "torch is 2.15.0, not 2.16.0" in node.run(pytorch_venv="/opt/own").failure


def test_fewer_usable_gpus_than_the_type_has_are_told(node: Node) -> None:
    assert "torch can use 0 GPUs, the type has 8" in node.run(pytorch_gpus=8).failure
