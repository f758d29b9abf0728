"""Where a node's events go."""

from trainyard.aws.s3 import Bucket
from trainyard.models.layout import BAKE_EVENTS, CURRENT_RUN, HEAD_EVENTS, RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.identity import Node
from trainyard.node.streams import ChunkWriter


def events_writer(node: Node, manifest: Manifest, source: str) -> ChunkWriter:
    """Where this node's events go: head's and builder's beside the manifest, a worker's under the current run."""
    staging = Bucket(manifest.staging_bucket, node.region)
    if node.role != "worker":
        stream = HEAD_EVENTS if node.role == "head" else BAKE_EVENTS
        return ChunkWriter(staging, chunk_prefix(stream, node.instance, node.boot, source))
    run = RunRecord.model_validate_json(staging.read(CURRENT_RUN)).run
    data = Bucket(manifest.data_bucket, node.region)
    return ChunkWriter(data, chunk_prefix(RunLayout(run).events, node.instance, node.boot, source))
