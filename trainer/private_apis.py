"""The names of libraries that the trainer uses and that are not public: they may change in any release.

tests/trainer/test_private_apis.py fails if one of them does not exist, is not listed or is no longer used.
"""

from collections.abc import Mapping

# Name -> its use.
PRIVATE_APIS: Mapping[str, str] = {
    "s3torchconnector._s3client.S3Client": "S3 of checkpoints: parallel parts without a temporary file",
    "torch._C._distributed_c10d": "the flight recorder is in no public module",
    "torch._C._distributed_c10d.PrefixStore": "torch.distributed does not export it for type checkers",
    "torch._C._distributed_c10d.Store": "torch.distributed does not export it for type checkers",
    "torch._C._distributed_c10d.TCPStore": "torch.distributed does not export it for type checkers",
    "torch._C._distributed_c10d._dump_fr_trace_json": "collectives of a hung job",
    "torch._dynamo": "maybe_mark_dynamic: numbers of documents without another compilation",
    "torch._foreach_copy_": "one kernel for the copies of all tensors",
    "torch._foreach_mul_": "one kernel for the scaling of all gradients",
    "torch._functorch.aot_autograd.aot_function": "plan: the graphs of a compiled block",
    "torch._functorch.partitioners.min_cut_rematerialization_partition": "plan: the tensors that torch.compile saves",
    "torch._inductor.decomposition.select_decomp_table": "plan: the operations that torch.compile sees",
    "torch._subclasses.fake_tensor.FakeTensorMode": "plan: tensors without data",
    "torch.cuda._pin_memory_utils.pin_memory": "pins memory of a file, which a restarted job maps again",
    "torch.cuda._pin_memory_utils.unpin_memory": "the reverse of pin_memory",
    "torch.cuda.memory._dump_snapshot": "the allocations of a GPU when memory runs out",
    "torch.cuda.memory._record_memory_history": "the same",
    "torch.distributed._functional_collectives.all_gather_single": "context parallelism: a gather with gradients",
    "torch.distributed._shard._utils.narrow_tensor_by_index": "parts of a tensor as DCP's planner computes them",
    "torch.distributed.checkpoint._nested_dict.set_element": "nested keys as DCP stores them",
    "torch.distributed.device_mesh.DeviceMesh._concatenate": "plan: meshes are created with values",
    "torch.distributed.distributed_c10d._abort_process_group": "recovery: ends operations that wait for a lost rank",
    "torch.distributed.distributed_c10d._get_default_store": "watchdog: the store of the job",
    "torch.distributed.distributed_c10d._world": "names of process groups, the same on new and on other ranks",
    "torch.distributed.tensor._sharding_prop.ShardingPropagator": "plan: DTensor's inference allocates nothing",
    "torch.distributed.tensor._sharding_prop.ShardingPropagator._propagate_tensor_meta_non_cached": "the same",
    "torch.nn.modules.batchnorm._BatchNorm": "base class of all batch normalizations",
    "torch.nn.utils.stateless._reparametrize_module": "plan: blocks of one shape share a graph",
    "torch.numa.binding._maybe_apply_numa_binding_to_current_process": "binding of forked ranks, as torchrun does it",
    "torch.ops._c10d_functional.all_reduce": "selective checkpointing saves its result",
    "torch.ops._c10d_functional.reduce_scatter_tensor": "selective checkpointing saves its result",
    "torch.ops.aten._grouped_mm": "selective checkpointing saves its result",
    "torch.ops.aten._scaled_dot_product_cudnn_attention": "selective checkpointing saves its result",
    "torch.ops.aten._scaled_dot_product_efficient_attention": "selective checkpointing saves its result",
    "torch.ops.aten._scaled_dot_product_flash_attention": "selective checkpointing saves its result",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "selective checkpointing saves its result",
    "torch.ops.aten._scaled_mm": "selective checkpointing saves its result",
    "torch.ops.torch_attn._varlen_attn": "selective checkpointing saves its result",
    "torch.testing._internal.distributed.fake_pg.FakeStore": "plan: a process group without peers",
    "torch.utils._python_dispatch.TorchDispatchMode": "plan: sees every operation",
    "torch.utils._python_dispatch._disable_current_modes": "plan: meshes are created with values",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass": "recognizes quantized weights",
    "torch.utils._pytree.tree_leaves": "plan: the tensors of nested arguments",
}
