"""The job of the manifest, and the objects that the built-in trainer reads first."""

from typing import Any

import pytest

from tests.trainyard.config.stacks import changed
from trainyard.config.settings import StackSettings
from trainyard.models.job import job_fields, required_object

PRETRAINED = {"kind": "hugging_face", "path": "$MODEL_PATH", "weights": True}
CUSTOM = {"train": None, "source": "s", "command": ["a.py"]}


def settings(**job: Any) -> StackSettings:
    return StackSettings.model_validate(changed({f"job.{key}": value for key, value in job.items()}))


@pytest.mark.parametrize(
    ("job", "data_uri", "model_uri"),
    [
        ({}, "in:d", None),
        ({"dataset": None, "data": "s3://books/p/", "model": "dataset:m"}, "s3://books/p/", "in:m"),
        ({"dataset": None, **CUSTOM, "model": "hf://org/name"}, None, "hf://org/name"),
    ],
)
def test_job_has_the_uris_of_data_and_model(job: dict[str, Any], data_uri: str | None, model_uri: str | None) -> None:
    fields = job_fields(settings(**job).job, None, "in:{}".format)
    assert (fields["data_uri"], fields["model_uri"]) == (data_uri, model_uri)


@pytest.mark.parametrize(
    ("job", "data", "model"),
    [
        ({}, "dataset.json", None),
        ({"model": "s3://models/m/", "train": {"model": PRETRAINED}}, "dataset.json", "config.json"),
        (CUSTOM, None, None),
    ],
)
def test_objects_that_the_trainer_reads_first(job: dict[str, Any], data: str | None, model: str | None) -> None:
    spec = settings(**job).job
    assert (required_object(spec, "job.dataset"), required_object(spec, "job.model")) == (data, model)
