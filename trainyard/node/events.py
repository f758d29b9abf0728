"""Writer for the events of a node, and the run that they belong to."""

from trainyard.aws.s3 import Bucket
from trainyard.log import set_run
from trainyard.models.layout import BAKE_EVENTS, CURRENT_RUN, HEAD_EVENTS, RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.identity import Node
from trainyard.node.streams import ChunkWriter


def read_current_run(node: Node, manifest: Manifest) -> RunRecord:
    """Record of the run that the launch has created last."""
    staging = Bucket(manifest.staging_bucket, node.region, node.account)
    return RunRecord.model_validate_json(staging.read(CURRENT_RUN))


def open_event_writer(node: Node, manifest: Manifest, source: str) -> ChunkWriter:
    """Writer for this node's events. `source`: name of the writing program.

    A worker writes to the current run, the head and a builder to the staging bucket.
    """
    if node.role != "worker":
        staging = Bucket(manifest.staging_bucket, node.region, node.account)
        stream = HEAD_EVENTS if node.role == "head" else BAKE_EVENTS
        return ChunkWriter(staging, chunk_prefix(stream, node.instance, node.boot, source))
    run = read_current_run(node, manifest).run
    set_run(run)
    data = Bucket(manifest.data_bucket, node.region)
    return ChunkWriter(data, chunk_prefix(RunLayout(run).events, node.instance, node.boot, source))
