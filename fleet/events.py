"""Where a node's events go."""

from contract.layout import BAKE_EVENTS, CURRENT_RUN, HEAD_EVENTS, RunLayout, chunk_prefix
from contract.manifest import Manifest
from contract.objects import Bucket
from contract.run import RunRecord
from fleet.chunks import ChunkWriter
from fleet.node import Node


def events_writer(node: Node, manifest: Manifest, source: str) -> ChunkWriter:
    """Where this node's events go: head's and builder's beside the manifest, a worker's under the current run."""
    staging = Bucket(manifest.staging_bucket, node.region)
    if node.role != "worker":
        stream = HEAD_EVENTS if node.role == "head" else BAKE_EVENTS
        return ChunkWriter(staging, chunk_prefix(stream, node.instance, node.boot, source))
    run = RunRecord.model_validate_json(staging.read(CURRENT_RUN)).run
    data = Bucket(manifest.data_bucket, node.region)
    return ChunkWriter(data, chunk_prefix(RunLayout(run).events, node.instance, node.boot, source))
