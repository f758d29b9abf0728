"""The job of the manifest from that of the settings, and the objects that the built-in trainer reads first."""

from collections.abc import Callable
from typing import Any

from trainyard.config.settings.job import JobSettings
from trainyard.config.shared_settings import JobSpec
from trainyard.config.training.models import MODEL_PATH, LanguageModelConfig
from trainyard.models.dataset import INDEX

MODEL_CONFIG = "config.json"


def job_fields(job: JobSettings, source: Any, dataset_uri: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields of trainyard.models.manifest.Job.

    `source`: the archive of the source. `dataset_uri` returns the S3 prefix of a dataset of the data bucket. Both may
    be outputs of the Pulumi program.
    """
    data = job.data if job.reads_own_bucket else None
    return {
        **job.model_dump(mode="json", include=set(JobSpec.model_fields)),
        "source": source,
        "data_uri": dataset_uri(job.dataset) if job.dataset is not None else data,
        "model_uri": dataset_uri(job.model_dataset) if job.model_dataset is not None else job.model,
    }


def required_object(job: JobSpec, key: str) -> str | None:
    """Return the name of the object that the built-in trainer reads first; None for a custom job.

    `key`: the setting of the prefix, such as job.model.
    """
    if job.train is None:
        return None
    if key != "job.model":
        return INDEX
    model = job.train.model
    return MODEL_CONFIG if isinstance(model, LanguageModelConfig) and model.path == MODEL_PATH else None
