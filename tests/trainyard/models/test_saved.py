"""Checkpoints and results in a listing of the data bucket."""

from trainyard.aws.s3 import StoredObject
from trainyard.models.saved import SavedItem, list_checkpoints, list_results

PREFIX = "runs/a/checkpoints/"


def stored(name: str, modified: float = 1.0, size: int = 10, storage_class: str = "STANDARD") -> StoredObject:
    return StoredObject(f"{PREFIX}{name}", storage_class, modified, size)


def checkpoints(*objects: StoredObject, builtin_trainer: bool = False) -> tuple[SavedItem, ...]:
    return list_checkpoints("data", objects, PREFIX, builtin_trainer=builtin_trainer)


def names(items: tuple[SavedItem, ...]) -> list[str]:
    return [item.name for item in items]


def test_folder_is_one_checkpoint() -> None:
    (item,) = checkpoints(stored("checkpoint-5/a.bin", 1.0), stored("checkpoint-5/rank0/b.bin", 3.0, size=5))
    assert item == SavedItem(
        name="checkpoint-5",
        uri=f"s3://data/{PREFIX}checkpoint-5/",
        size_bytes=15,
        files=2,
        modified=3.0,
        archived=False,
    )


def test_single_file_is_a_checkpoint() -> None:
    (item,) = checkpoints(stored("model.pt"))
    assert (item.name, item.uri, item.files) == ("model.pt", f"s3://data/{PREFIX}model.pt", 1)


def test_checkpoints_of_a_custom_job_are_sorted_by_time() -> None:
    assert names(checkpoints(stored("best.pt", 3.0), stored("last.pt", 2.0))) == ["last.pt", "best.pt"]


def test_checkpoints_of_the_same_second_are_sorted_by_number() -> None:
    assert names(checkpoints(stored("step-10/a"), stored("step-9/a"))) == ["step-9", "step-10"]


def test_newest_checkpoint_of_a_custom_job_has_a_commit_mark_if_any_has() -> None:
    objects = (stored("step-1/.metadata", 1.0), stored("step-2/__0_0.distcp", 2.0))
    assert names(checkpoints(*objects)) == ["step-2", "step-1"]


def test_incomplete_checkpoint_of_the_builtin_trainer_is_omitted() -> None:
    objects = (stored("step-1/.metadata"), stored("step-2/__0_0.distcp"))
    assert names(checkpoints(*objects, builtin_trainer=True)) == ["step-1"]


def test_empty_folder_object_is_omitted() -> None:
    assert checkpoints(stored(""), stored("step-1/")) == ()


def test_item_with_an_archived_object_is_archived() -> None:
    (item,) = checkpoints(stored("step-1/a"), stored("step-1/b", storage_class="DEEP_ARCHIVE"))
    assert item.archived


def test_results_are_sorted_by_name() -> None:
    objects = (stored("tensorboard/events", 1.0), stored("line.json", 2.0))
    assert names(list_results("data", objects, PREFIX)) == ["line.json", "tensorboard"]
