"""The container image of a run: resolved once by the launch, before anything is launched, and stored by digest."""

from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.ecr import REGISTRY, push_image
from tests.manifests import MANIFEST
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.config.shared_settings import NodeSettings
from trainyard.errors import InputError
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.operations import container_image
from trainyard.operations.cluster import Cluster
from trainyard.operations.container_image import resolve_container_image
from trainyard.operations.container_registry import ImageReference
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.status import format_status, read_status

pytestmark = pytest.mark.usefixtures("fast_polls")
BY_DIGEST = f"registry.invalid/train@sha256:{'5' * 64}"
BY_TAG = "registry.invalid/team/train:1"


def manifest_of(image: str | None, **node: object) -> Manifest:
    job = MANIFEST.job.model_copy(update={"container": image})
    return MANIFEST.model_copy(update={"job": job, "node": NodeSettings.model_validate(node)})


def resolve(image: str | None, **node: object) -> str | None:
    return resolve_container_image(manifest_of(image, **node), RecordingDisplay())


def fail_requests(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let requests to registries other than ECR fail."""

    def fail(_: ImageReference) -> str:
        raise error

    monkeypatch.setattr(container_image, "find_digest", fail)


@pytest.mark.parametrize("image", [None, BY_DIGEST, f"registry.invalid/train:1@sha256:{'5' * 64}"])
def test_image_with_a_digest_is_used_without_a_request(image: str | None) -> None:
    assert resolve(image) == image


@pytest.mark.parametrize("node", [{"skip_roles": ["container"]}, {"provisioning": "skip"}])
def test_image_of_a_machine_image_is_not_resolved(node: dict[str, object]) -> None:
    assert resolve(BY_TAG, **node) == BY_TAG


def test_tag_in_ecr_is_resolved(account: EmulatedAws) -> None:
    digest = push_image("resolved", "1", "content")
    assert resolve(f"{REGISTRY}/resolved:1") == f"{REGISTRY}/resolved@{digest}"


def test_tag_in_another_registry_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_image, "find_digest", lambda _: f"sha256:{'6' * 64}")
    assert resolve("registry.invalid:5000/team/train:1") == f"registry.invalid:5000/team/train@sha256:{'6' * 64}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LookupError("no such tag"), "container_image_missing"),
        (PermissionError("status 401"), "container_image_denied"),
        (OSError("timed out"), "container_registry_failed"),
    ],
)
def test_problem_names_image_and_command_for_its_digest(
    error: Exception, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_requests(monkeypatch, error)
    with pytest.raises(InputError) as raised:
        resolve(BY_TAG)
    [problem] = raised.value.problems
    assert (problem.key, problem.value, problem.code) == ("job.container", BY_TAG, code)
    assert ("docker buildx imagetools inspect" in problem.fix) == (code != "container_image_missing")


class Stack:
    """A stack whose job runs in a container of an image in ECR, and its launches."""

    def __init__(self, repository: str) -> None:
        self.repository, self.image = repository, f"{REGISTRY}/{repository}:latest"
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",), container=self.image)
        self.cluster.write_head_ready_events()

    def launch(self, **options: Any) -> RunRecord:
        """Launch without waiting for the job; return the record of the run."""
        cluster = Cluster(self.cluster.stack, REGION)
        Launch(cluster, RecordingDisplay(), LaunchOptions(wait=False, **options)).start()
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))


def test_record_of_the_run_has_the_digest(account: EmulatedAws) -> None:
    stack = Stack("recorded")
    digest = push_image(stack.repository, "latest", "content")
    record = stack.launch()
    assert record.job.container == f"{REGISTRY}/{stack.repository}@{digest}"
    assert record.matches(stack.cluster.manifest)


def test_moved_tag_does_not_change_a_run(account: EmulatedAws) -> None:
    stack = Stack("moved")
    push_image(stack.repository, "latest", "content")
    record = stack.launch()
    push_image(stack.repository, "latest", "other content")
    assert stack.launch() == record


def test_next_run_has_the_image_that_the_tag_names_then(account: EmulatedAws) -> None:
    stack = Stack("next")
    push_image(stack.repository, "latest", "content")
    stack.launch()
    digest = push_image(stack.repository, "latest", "other content")
    record = stack.launch(new_run=True, replace_running=True)
    assert record.job.container == f"{REGISTRY}/{stack.repository}@{digest}"


def test_missing_tag_fails_before_anything_is_launched(account: EmulatedAws) -> None:
    stack = Stack("empty")
    push_image(stack.repository, "1", "content")
    before = len(account.capacity_requests())
    with pytest.raises(InputError) as raised:
        stack.launch()
    assert [problem.code for problem in raised.value.problems] == ["container_image_missing"]
    assert stack.cluster.staging.find(CURRENT_RUN) is None
    assert len(account.capacity_requests()) == before


def test_status_shows_the_image_with_its_digest(account: EmulatedAws) -> None:
    stack = Stack("shown")
    digest = push_image(stack.repository, "latest", "content")
    stack.launch()
    status = read_status(Cluster(stack.cluster.stack, REGION), None)
    assert f"container image {REGISTRY}/{stack.repository}@{digest}" in format_status(status, stack.cluster.stack)
