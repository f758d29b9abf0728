"""`trainyard status`."""

from trainyard.cli.options import JsonOption, RunOption, StackOption
from trainyard.operations.cluster import Cluster
from trainyard.operations.status import format_status, read_status


def status(stack: StackOption, run: RunOption = None, as_json: JsonOption = False) -> None:
    """Print the status of a run: progress or outcome, deadlines, nodes and last health check."""
    result = read_status(Cluster.from_environment(stack), run)
    print(result.model_dump_json() if as_json else "\n".join(format_status(result)))
