"""The supervisor of a node: its command line and its report."""

from datetime import datetime
from pathlib import Path

from trainer.recovery.supervisor import RankExit, describe_node, format_report, parse_arguments
from trainyard.models.run import Master
from trainyard.node.agent.rank_failures import parse_failures, rank_log_folders
from trainyard.node.agent.torchrun import JOIN_SECONDS, SUPERVISOR, torchrun_command


def test_agent_parses_the_report(tmp_path: Path) -> None:
    """A rank that has failed because of its peer, and the lost peer."""
    (tmp_path / "run-1/attempt_0/0").mkdir(parents=True)
    (tmp_path / "run-1/attempt_0/0/stderr.log").write_text("lost the connection to another rank: rank 3 did not join\n")
    at = datetime(2026, 11, 26, 3, 0, 0)
    failed = [RankExit(rank=2, local_rank=0, process=11, code=1, time=at), RankExit(3, 1, 12, -9, at)]
    first, second = parse_failures(f"log line\n{format_report(failed)}", tmp_path, noticed_at=0.0, processes=4)
    assert (first.rank, first.local_rank, first.exitcode) == (2, 0, 1)
    assert first.message == "lost the connection to another rank: rank 3 did not join"
    assert (second.rank, second.exitcode, second.message) == (3, -9, "ended by signal 9")
    assert second.time == at.timestamp()


def test_command_of_the_agent_describes_the_node(tmp_path: Path) -> None:
    """Ranks, logs and variables are those of torchrun."""
    command = torchrun_command(
        python=Path("python"),
        nodes=("i-1", "i-2"),
        instance="i-2",
        master=Master(address="10.0.0.1", port=20000),
        rendezvous="run-1",
        processes=4,
        job=["-m", "trainer", "--config", "config.json"],
        logs=tmp_path,
        launcher=SUPERVISOR,
    )
    assert command[1:3] == ["-m", SUPERVISOR]
    arguments = parse_arguments(command[3:])
    assert arguments.rdzv_conf == f"timeout={JOIN_SECONDS:.0f}"
    node = describe_node(arguments)
    assert (node.nodes, node.node_rank, node.arguments) == (2, 1, ["--config", "config.json"])
    assert node.rank_variables(3) == {"RANK": "7", "LOCAL_RANK": "3"}
    assert (node.variables["MASTER_ADDR"], node.variables["MASTER_PORT"]) == ("10.0.0.1", "20000")
    assert (node.variables["WORLD_SIZE"], node.variables["LOCAL_WORLD_SIZE"]) == ("8", "4")
    node.rank_logs(3).mkdir(parents=True)
    assert rank_log_folders(tmp_path, 4) == {3: node.rank_logs(3)}
