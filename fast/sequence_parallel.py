"""Decide whether activations are scattered over tensor-parallel ranks."""

from typing import Any

from fast._checks import check_bool, check_int, check_list, check_type, describe, is_int


def is_residual_scattered_for_sp(vllm_config: Any, num_input_tokens: int) -> bool:
    """Return whether the residual stream is scattered over the tensor-parallel ranks.

    Definition: `reference.is_residual_scattered_for_sp`.
    """
    num_tokens = check_int("num_input_tokens", num_input_tokens, 0, None)
    config = vllm_config.compilation_config
    check_bool("compilation_config.pass_config.enable_sp", config.pass_config.enable_sp)
    if not config.pass_config.enable_sp:
        return False
    num_ranks = check_int(
        "parallel_config.tensor_parallel_size",
        vllm_config.parallel_config.tensor_parallel_size,
        maximum=None,
    )
    if num_ranks == 1:
        return False
    if num_tokens % num_ranks:
        raise ValueError(
            f"num_input_tokens is {num_tokens}, expected a multiple of the {num_ranks}"
            " tensor-parallel ranks: the runner pads it where sequence parallelism is on"
        )
    splitting_ops = [] if config.splitting_ops is None else config.splitting_ops
    check_type("compilation_config.splitting_ops", splitting_ops, list | tuple, "a list or tuple")
    if not splitting_ops:
        return True
    is_cut_by_compiler = config.use_inductor_graph_partition
    check_bool("compilation_config.use_inductor_graph_partition", is_cut_by_compiler)
    if is_cut_by_compiler:
        return True
    sizes = config.compile_sizes
    if sizes is None:
        return False
    check_list("compilation_config.compile_sizes", sizes)
    for i, size in enumerate(sizes):
        if not is_int(size):
            raise TypeError(
                f"compilation_config.compile_sizes[{i}] must be an int, got {describe(size)}"
            )
    return num_tokens in sizes
