"""The memory of compiled blocks, without compilation: torch.compile's choice of the tensors that a block saves.

torch.compile traces forward and backward pass of a block into one graph, and selects the tensors between them by a
minimum cut: cheap operations are repeated in the backward pass. The two graphs run here operation by operation. A
compiled block fuses them into kernels, so its temporary tensors need less.
"""

import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import CheckpointPolicy

Policy = Callable[[Any], CheckpointPolicy]  # of activation checkpointing, by operation


def trace_blocks(blocks: Iterable[nn.Module], policy: Policy | None) -> None:
    """Let blocks of the same shapes run the graphs of the first of them. `policy`: of activation checkpointing."""
    (first, *_) = members = list(blocks)
    forward = type(first).forward

    def call(parameters: dict[str, Tensor], *arguments: Any) -> Any:
        with _reparametrize_module(first, parameters):
            return forward(first, *arguments)

    traced = aot_function(
        call,
        fw_compiler=_keep_graph,
        bw_compiler=_keep_graph,
        partition_fn=partial(_partition, policy),
        decompositions=select_decomp_table(),
    )
    for block in members:
        block.forward = partial(_call_with_parameters, traced, block)


def _call_with_parameters(traced: Callable[..., Any], block: nn.Module, *arguments: Any) -> Any:
    return traced(dict(block.named_parameters()), *arguments)


def _keep_graph(gm: torch.fx.GraphModule, example_inputs: Any) -> torch.fx.GraphModule:
    return gm


def _partition(policy: Policy | None, joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    for node in joint.graph.nodes:
        if policy and node.op == "call_function" and node.meta.get("partitioner_tag") != "is_backward":
            # As torch.utils.checkpoint marks them under torch.compile; of several results each.
            operation = node.args[0].target if node.target is operator.getitem else node.target
            node.meta["recompute"], node.meta["ac_graph_id"] = policy(operation), 0
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)
