"""Failure analysis: what caused the failure of an attempt, and what follows. Without side effects.

A node is at fault if it left its group, rebooted or is lost, if its health monitor has a finding that needs an action,
or if ranks fail on it in the same way in two attempts with different node ranks. Such a fault does not count against
the job. The run ends after a failure that would be the same on any node, after ranks failed in the same way on two
nodes without progress, and after four attempts without progress. While a service does not respond, attempts that cannot
start are repeated.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from trainyard.models.decision import AttemptDecision, Evidence, NodeAction
from trainyard.models.events import RankFailure
from trainyard.models.failure_messages import (
    ALL_RANKS_WAIT,
    HANG,
    HUNG_WITH_PEERS,
    NO_RANK_WAITS,
    NODE_REBOOTED,
    PEER_LOST,
)
from trainyard.models.node_health import ACTIONS

MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS = 4
# Pauses before another attempt while a service does not respond.
OUTAGE_RETRY_SECONDS, MAXIMUM_RETRY_SECONDS = 5.0, 120.0
ATTEMPTS_OF_ISOLATED_NODE = 3  # after which a node that alone fails is replaced

# Error messages of a rank that failed only because another rank failed or became unreachable.
_PEER_FAILURE = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|remote process (exited|has failed)"
    r"|socket timeout|NCCL.*(remote|unhandled system)|DistBackendError|DistNetworkError|DistStoreError"
    r"|gloo.*timed? ?out"
    rf"|{HUNG_WITH_PEERS}|{PEER_LOST}|{ALL_RANKS_WAIT}|{NO_RANK_WAITS}",
    re.IGNORECASE,
)
# Failures that broken hardware causes as well as the job's own code. NVIDIA XID errors guide: Xid 13 and 31 are usually
# errors of the application, but may also be faults of hardware. A rank for which others wait may have hung in a driver.
_POSSIBLY_HARDWARE = re.compile(
    rf"^{HANG}|CUDA error(?!: device-side assert)|CUBLAS_STATUS|CUDNN_STATUS|NCCL|uncorrectable|illegal memory access"
    r"|signal (4|7|8|11)\b"
)
_HUNG_RANK = re.compile(r"(?:waiting for|is open:|;) rank (\d+)")


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """What is known about an attempt that failed or lost a node.

    `nodes`: in the order of their node ranks; each has `processes` ranks. `failures`: (node, failure) of all ranks that
    failed. `departed`: nodes that left their group. `silent`: node -> how it was found to be lost. `hardware`: node ->
    findings of its health monitor that need an action, as (action, text). `slow`: node -> how one of its ranks is
    slower than the others. `last_step`: that a node has reported. `has_progress`: whether a new checkpoint or a higher
    step exists since the previous decision. `were_checked`: whether all nodes passed a health check since that
    decision. `can_check`: whether the run has health checks. `outage_limit_seconds`: time for which attempts may
    fail to start because a service does not respond.
    """

    attempt: int
    time: float
    nodes: tuple[str, ...]
    last_step: int = 0
    processes: int = 1
    failures: Sequence[tuple[str, RankFailure]] = ()
    departed: Sequence[str] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, Sequence[tuple[NodeAction, str]]] = field(default_factory=dict)
    slow: Mapping[str, str] = field(default_factory=dict)
    has_progress: bool = False
    outage_limit_seconds: float = 900.0
    were_checked: bool = False
    can_check: bool = True


def is_caused_by_peer(message: str) -> bool:
    """Return whether the error message of a rank only reports the failure of another rank."""
    return _PEER_FAILURE.search(message) is not None


def find_causes(failures: Iterable[tuple[str, RankFailure]]) -> list[tuple[str, RankFailure]]:
    """Return the (node, failure) that are neither torchrun's SIGTERM nor caused by a peer, earliest first.

    Without any, all failures were caused by others: their messages contain no cause, and differ by address and port.
    """
    causes = [each for each in failures if each[1].exitcode != -15 and not is_caused_by_peer(each[1].message)]
    return sorted(causes, key=lambda cause: (cause[1].time, cause[1].rank))


def locate_hangs(failure: AttemptFailure) -> list[tuple[str, RankFailure]]:
    """Return the failures; a report of a hang becomes a failure of each rank that the others wait for.

    The lowest rank that responds reports a hang: its node is as a rule not the cause.
    """
    located = []
    for node, each in failure.failures:
        names_ranks = each.message.startswith(HANG) and not is_caused_by_peer(each.message)
        numbers = [int(number) for number in _HUNG_RANK.findall(each.message)] if names_ranks else []
        hung = [number for number in numbers if number < len(failure.nodes) * failure.processes]
        for rank in hung:
            fields = {"rank": rank, "local_rank": rank % failure.processes}
            located.append((failure.nodes[rank // failure.processes], each.model_copy(update=fields)))
        if not hung:
            located.append((node, each))
    return located


def is_same_failure(before: RankFailure, after: RankFailure) -> bool:
    """Return whether two failures have the same type of exception; its text may differ.

    The exit code is ignored: an exception may end in exit code 1 or in an abort. Failures before the ranks started have
    no exception: their text counts. SIGKILL comes from outside the rank, so it is never the same failure.
    """
    if after.exitcode == -9:
        return False
    if before.local_rank is None or after.local_rank is None:
        return (before.local_rank, before.message) == (after.local_rank, after.message)
    return before.message.split(":")[0] == after.message.split(":")[0]


def decide(failure: AttemptFailure, earlier: Sequence[AttemptDecision]) -> AttemptDecision:
    """Decide what follows an attempt that has failed. `earlier`: decisions since the last progress, oldest first."""
    earlier = () if failure.has_progress else earlier
    causes = find_causes(locate_hangs(failure))
    actions, evidence = _find_node_faults(failure, earlier)
    node, first = causes[0] if causes else (None, None)
    same = [name for name, each in causes if first is not None and is_same_failure(first, each)]
    draft = AttemptDecision(
        attempt=failure.attempt,
        time=failure.time,
        nodes=failure.nodes,
        last_step=failure.last_step,
        cause="node" if actions else "job" if causes else "unknown",
        actions=actions,
        evidence=(*evidence, *_describe_ranks(failure, causes)),
        failed_node=node,
        failure=first,
        failing_nodes=tuple(dict.fromkeys(same)),
        attempts_without_progress=sum(each.cause in ("job", "unknown") for each in earlier) + (not actions),
        checks_nodes=bool(failure.slow) and failure.can_check,
    )
    if first is not None and first.is_permanent:
        return draft.model_copy(update={"end_reason": f"{first.describe(node)} failed: {first.message}"})
    if not actions and first is not None and first.is_outage:
        return _retry_after_outage(draft, earlier, failure)
    return draft if actions else _decide_on_job(draft, earlier, failure)


def _retry_after_outage(
    draft: AttemptDecision, earlier: Sequence[AttemptDecision], failure: AttemptFailure
) -> AttemptDecision:
    """Start another attempt after a pause, which doubles each time, until the limit. Then the run ends.

    A node that alone fails so three times is replaced: its network may be broken.
    """
    outages = list(takewhile(lambda each: each.cause == "outage", reversed(earlier)))
    nodes = tuple(sorted({node for node, each in failure.failures if each.is_outage}))
    draft = draft.model_copy(
        update={
            "cause": "outage",
            "failing_nodes": nodes,
            "attempts_without_progress": draft.attempts_without_progress - 1,
            "retry_seconds": min(OUTAGE_RETRY_SECONDS * 2 ** len(outages), MAXIMUM_RETRY_SECONDS),
        }
    )
    recent = outages[: ATTEMPTS_OF_ISOLATED_NODE - 1]
    is_isolated = len(recent) == ATTEMPTS_OF_ISOLATED_NODE - 1 and all(each.failing_nodes == nodes for each in recent)
    if is_isolated and len(nodes) == 1 and len(draft.nodes) > 1:
        text = f"{nodes[0]} alone could not start its ranks in {ATTEMPTS_OF_ISOLATED_NODE} attempts"
        return _blame(draft, nodes[0], text)
    if outages and draft.time - outages[-1].time > failure.outage_limit_seconds and draft.failure is not None:
        minutes = f"{failure.outage_limit_seconds / 60:g} minutes (launch.replacement_minutes)"
        reason = f"no attempt could start for {minutes}; {draft.failure.describe(draft.failed_node)}"
        return draft.model_copy(update={"end_reason": f"{reason}: {draft.failure.message}"})
    return draft


def _find_node_faults(
    failure: AttemptFailure, earlier: Sequence[AttemptDecision]
) -> tuple[dict[str, NodeAction], list[Evidence]]:
    """Return the nodes at fault with their actions, and the evidence. A node that reboots twice is replaced."""
    rebooted = {each.node for decision in earlier for each in decision.evidence if each.kind == "rebooted"}
    actions: dict[str, NodeAction] = {}
    evidence = []
    for node in failure.departed:  # its group replaces it
        actions[node] = "none"
        evidence.append(Evidence(kind="departed", node=node, text=f"{node} left its group"))
    for node, each in failure.failures:
        if each.message == NODE_REBOOTED:  # after a kernel panic, for example
            actions[node] = "replace" if node in rebooted else "none"
            evidence.append(Evidence(kind="rebooted", node=node, text=f"{node} rebooted during the attempt"))
    for node, text in failure.silent.items():
        actions[node] = "replace"
        evidence.append(Evidence(kind="unresponsive", node=node, text=text))
    for node, findings in failure.hardware.items():
        worst = max((action for action, _ in findings), key=ACTIONS.index)
        actions[node] = max(worst, actions.get(node, "none"), key=ACTIONS.index)
        evidence += [Evidence(kind="hardware", node=node, text=text) for _, text in findings]
    for node, text in failure.slow.items():
        actions.setdefault(node, "none")  # the health check confirms it
        evidence.append(Evidence(kind="slow", node=node, text=text))
    return actions, evidence


def _describe_ranks(failure: AttemptFailure, causes: Sequence[tuple[str, RankFailure]]) -> list[Evidence]:
    """Return the failures of ranks as evidence: each with its own cause, and one line for all other nodes."""
    evidence = [
        Evidence(kind="rank", node=node, text=f"{each.describe(node)}: {each.message}") for node, each in causes
    ]
    named = {node for node, _ in causes}
    others: dict[str, str] = {}
    for node, each in failure.failures:
        if node not in named and is_caused_by_peer(each.message):
            others.setdefault(node, f"{each.describe(node)} lost its connection to others: {each.message}")
    if others:
        node, text = next(iter(others.items()))
        count = f"; so did ranks of {len(others) - 1} other nodes" if len(others) > 1 else ""
        evidence.append(Evidence(kind="peer", node=node, text=f"{text}{count}"))
    return evidence


def _decide_on_job(
    draft: AttemptDecision, earlier: Sequence[AttemptDecision], failure: AttemptFailure
) -> AttemptDecision:
    """Complete a decision without evidence against a node: another attempt on checked or other nodes, or the end."""
    count, first = draft.attempts_without_progress, draft.failure
    same = [
        each
        for each in earlier
        if each.cause == "job" and first is not None and each.failure and is_same_failure(each.failure, first)
    ]
    nodes = dict.fromkeys(node for each in (*same, draft) for node in each.failing_nodes)
    where = first.describe(draft.failed_node) if first else ""
    if same and first is not None:
        is_hardware = _POSSIBLY_HARDWARE.search(first.message) is not None
        if (is_hardware or len(nodes) == 1) and _has_moved(same, draft):
            text = f"ranks failed in the same way on {draft.failed_node} in two attempts with different node ranks"
            return _blame_again(draft, text)
        # Hardware of several nodes may fail at the same time: then the number of attempts decides.
        if len(nodes) > 1 and not is_hardware:
            text = f"{where} failed the same way as {' and '.join(sorted(set(nodes) - {draft.failed_node}))} before"
            return draft.model_copy(update={"end_reason": f"{text}: {first.message}"})
        if is_hardware and len(draft.nodes) == len(nodes) == 1:
            text = f"ranks failed twice in the same way on {draft.failed_node}, the only node, with an error"
            return _blame_again(draft, f"{text} that broken hardware may cause")
        if len(draft.nodes) == 1 and len(nodes) > 1:
            others = " and ".join(sorted(set(nodes) - {draft.failed_node}))
            text = f"{where} failed the same way as {others} before: {first.message}"
            return draft.model_copy(update={"end_reason": text})
        if len(draft.nodes) == 1 and (failure.were_checked or not failure.can_check):
            checked = ", and the node passed a health check between" if failure.were_checked else ""
            text = f"{where} failed twice the same way{checked}: {first.message}"
            return draft.model_copy(update={"end_reason": text})
    if count >= MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS:
        last = f"last failure: {where}: {first.message}" if first else "no rank reported a cause"
        text = f"{count} consecutive attempts failed without a new checkpoint or step; {last}"
        return draft.model_copy(update={"end_reason": text})
    is_suspect = first is None or bool(_POSSIBLY_HARDWARE.search(first.message)) or count > 1
    swaps = draft.failed_node if len(draft.nodes) > 1 and len(draft.failing_nodes) == 1 else None
    return draft.model_copy(update={"checks_nodes": is_suspect and failure.can_check, "swaps_node": swaps})


def _has_moved(same: Sequence[AttemptDecision], draft: AttemptDecision) -> bool:
    """Return whether the failing node ran other ranks in the attempt before: the failure has followed the node."""
    before = next((each for each in reversed(same) if each.failed_node == draft.failed_node), None)
    if before is None or draft.failed_node not in draft.nodes:
        return False
    return before.nodes.index(draft.failed_node) != draft.nodes.index(draft.failed_node)


def _blame_again(draft: AttemptDecision, text: str) -> AttemptDecision:
    """Replace the node of the rank that failed first: this attempt does not count against the job."""
    count = draft.attempts_without_progress - 1
    return _blame(draft.model_copy(update={"attempts_without_progress": count}), draft.failed_node, text)


def _blame(draft: AttemptDecision, node: str | None, text: str) -> AttemptDecision:
    """Replace a node on which attempts failed repeatedly."""
    assert node is not None
    evidence = (Evidence(kind="repeated", node=node, text=text), *draft.evidence)
    return draft.model_copy(update={"cause": "node", "actions": {node: "replace"}, "evidence": evidence})
