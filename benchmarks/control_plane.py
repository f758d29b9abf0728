"""Cost of the connections between agents and controller against the number of nodes.

A process runs the controller's WebSocket server. Another connects as the agents of all nodes do, and sends a heartbeat
of eight ranks every five seconds. The requests name all nodes, as `control.json` does. `cpu_ms` is the CPU time of the
server per node and second. `connect_ms` is the CPU time of the server per connection, for the TLS handshake and the
first requests. `publish_ms` is the time until all agents have received changed requests. `ratio` is `cpu_ms` of the
largest number of nodes divided by `cpu_ms` of the smallest number.
"""

import asyncio
import json
import multiprocessing
import ssl
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from websockets.asyncio.client import ClientConnection, connect

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Sizes
from benchmarks.simulation.storage import MemoryBucket
from trainyard.models.connection import ControllerEndpoint, Heartbeat
from trainyard.models.layout import CONTROLLER_ENDPOINT
from trainyard.models.rank_progress import RankProgress
from trainyard.models.run import Control
from trainyard.node.agent.connection import HEARTBEAT_SECONDS
from trainyard.node.controller.agent_server import AgentServer
from trainyard.node.identity import Node

SIZES = (2, 64, 1024)
RANKS, RUN = 8, "benchmark"
CONNECTING = 16  # connections that are opened at the same time


@dataclass(frozen=True)
class Cost:
    """The cost of the connections of one number of nodes. Times of the server per node, except `publish_ms`."""

    nodes: int
    cpu_ms: float
    connect_ms: float
    publish_ms: float
    memory_mib: float


def serve(pipe: Connection, nodes: int) -> None:
    """Run the server. Messages: None stops it, a number publishes that attempt, "cpu" requests its CPU seconds."""
    node = Node(
        instance="i-head", role="head", region="us-east-1", address="127.0.0.1", boot="0001", manifest_uri="", bundle=""
    )
    server, staging = AgentServer(node), MemoryBucket("staging")
    server.start(staging)
    names = tuple(map(instance_id, range(nodes)))
    server.publish(RUN, Control(nodes=names, healthy_nodes=names))
    pipe.send(staging.read(CONTROLLER_ENDPOINT))
    while (message := pipe.recv()) is not None:
        if message == "cpu":
            pipe.send(time.process_time())
        else:
            server.publish(RUN, Control(attempt=message, nodes=names, healthy_nodes=names))
    server.close()


def instance_id(node: int) -> str:
    """Return the instance id of a node."""
    return f"i-{node:017x}"


def heartbeat(node: int, sequence: int) -> str:
    """Return a heartbeat of a node of eight ranks."""
    now = time.time()
    ranks = [
        RankProgress(rank=RANKS * node + rank, step=sequence, time=now, step_seconds=1.0, busy_seconds=0.9)
        for rank in range(RANKS)
    ]
    message = Heartbeat(
        instance=instance_id(node), boot="0001", sequence=sequence, run=RUN, attempt=1, ranks=tuple(ranks)
    )
    return message.model_dump_json()


async def measure_nodes(nodes: int, seconds: float, pipe: Connection, server: psutil.Process) -> Cost:
    """Connect as the agents of `nodes` nodes, and send heartbeats for some seconds."""
    endpoint = ControllerEndpoint.model_validate_json(pipe.recv())
    context = ssl.create_default_context(cadata=endpoint.certificate)
    idle, limit = _cpu_seconds(pipe), asyncio.Semaphore(CONNECTING)
    async with AsyncExitStack() as stack:

        async def open_connection(node: int) -> ClientConnection:
            async with limit:
                connection = await stack.enter_async_context(
                    connect(
                        f"wss://{endpoint.address}:{endpoint.port}",
                        ssl=context,
                        additional_headers={"Authorization": f"Bearer {endpoint.token}"},
                        proxy=None,
                        compression=None,
                        open_timeout=60,
                    )
                )
                await connection.send(heartbeat(node, 1))
                await connection.recv()
                return connection

        connections = await asyncio.gather(*map(open_connection, range(nodes)))
        connected = _cpu_seconds(pipe)
        ends_at = time.monotonic() + seconds

        async def send_heartbeats(node: int, connection: ClientConnection) -> None:
            await asyncio.sleep(min(HEARTBEAT_SECONDS, seconds) * node / nodes)
            sequence = 2
            while time.monotonic() < ends_at:
                await connection.send(heartbeat(node, sequence))
                sequence += 1
                await asyncio.sleep(min(HEARTBEAT_SECONDS, max(0.0, ends_at - time.monotonic())))

        started_at = time.monotonic()
        await asyncio.gather(*(send_heartbeats(node, each) for node, each in enumerate(connections)))
        elapsed, used = time.monotonic() - started_at, _cpu_seconds(pipe) - connected
        published_at = time.monotonic()
        pipe.send(2)
        await asyncio.gather(*(each.recv() for each in connections))
        published = time.monotonic() - published_at
        memory = server.memory_info().rss / 2**20
    return Cost(
        nodes,
        round(1000 * used / nodes / elapsed, 3),
        round(1000 * (connected - idle) / nodes, 2),
        round(1000 * published, 1),
        round(memory, 1),
    )


def _cpu_seconds(pipe: Connection) -> float:
    pipe.send("cpu")
    return float(pipe.recv())


def measure(sizes: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """Measure all sizes, each with a new server."""
    costs = []
    for nodes in sizes:
        pipe, remote = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(remote, nodes), daemon=True)
        process.start()
        try:
            costs.append(asyncio.run(measure_nodes(nodes, seconds, pipe, psutil.Process(process.pid))))
        finally:
            pipe.send(None)
            process.join()
    return {"sizes": [asdict(cost) for cost in costs], "ratio": round(costs[-1].cpu_ms / costs[0].cpu_ms, 2)}


def main(
    sizes: Sizes = None,
    seconds: Annotated[float, typer.Option(help="Duration of the heartbeats of each size.")] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Cost of the connections between agents and controller."""
    results = measure(tuple(sizes or SIZES), seconds)
    if as_json:
        print(json.dumps(results))
        return
    print("nodes   CPU ms per node and second   CPU ms of a connection   publish ms   memory MiB")
    for each in results["sizes"]:
        costs = f"{each['cpu_ms']:>28.3f} {each['connect_ms']:>24.2f}"
        print(f"{each['nodes']:>5} {costs} {each['publish_ms']:>12.1f} {each['memory_mib']:>12.1f}")
    print(f"ratio {results['ratio']:.2f}")


if __name__ == "__main__":
    typer.run(main)
