"""The preview reports a job's source that cannot run, before a resource is created."""

from pathlib import Path

import pytest

from infra.packaging.archive import Entry, Packed, pack
from infra.validators.source import validate_source
from tests.trainyard.config.stacks import changed
from tests.wheels import Wheel
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError


def packed(**files: str) -> Packed:
    return pack({name.replace("__", "."): Entry(text.encode()) for name, text in files.items()})


@pytest.fixture
def index(tmp_path: Path) -> str:
    folder = tmp_path / "index"
    folder.mkdir()
    Wheel(name="required").build(tmp_path).rename(folder / "required-1.0-py3-none-any.whl")
    return str(folder)


@pytest.fixture
def settings(index: str) -> StackSettings:
    custom = {"job.train": None, "job.source": "mine", "job.command": ["train.py"], "node.package_index": index}
    return StackSettings.model_validate(changed(custom))


def refused(settings: StackSettings, source: Packed) -> str:
    with pytest.raises(InputError) as error:
        validate_source(settings, source)
    return error.value.problems[0].code


def test_valid_source_passes(settings: StackSettings) -> None:
    assert validate_source(settings, packed(train__py="import torch, required\n", requirements__txt="required")) is None


def test_missing_module_is_refused(settings: StackSettings) -> None:
    assert refused(settings, packed(train__py="import required\n")) == "module_not_found"


def test_satisfied_requirements_add_no_module(settings: StackSettings) -> None:
    assert refused(settings, packed(train__py="import required\n", requirements__txt="torch")) == "module_not_found"


def test_requirement_that_the_index_does_not_have_is_refused(settings: StackSettings) -> None:
    source = packed(train__py="import torch\n", requirements__txt="requird\n")
    assert refused(settings, source) == "requirements_not_resolvable"


@pytest.mark.parametrize("index", ["http://127.0.0.1:9/simple", "/nonexistent", "s3://bucket/wheels/"])
def test_requirements_are_not_resolved_if_the_index_cannot_be_read(
    settings: StackSettings, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    node = settings.node.model_copy(update={"package_index": index})
    source = packed(train__py="import required\n", requirements__txt="required\n")
    warning = validate_source(settings.model_copy(update={"node": node}), source)
    assert (warning is None) == (not index.startswith("http"))


def test_requirements_are_not_resolved_for_an_image_by_its_id(settings: StackSettings) -> None:
    baked = settings.model_copy(update={"image": "ami-0123456789abcdef0"})
    assert validate_source(baked, packed(train__py="import requird\n", requirements__txt="requird\n")) is None
