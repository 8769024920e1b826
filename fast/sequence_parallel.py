"""Whether activations are scattered over tensor-parallel ranks."""

from typing import Any

from fast._checks import check_bool, check_int, check_list, check_type, describe, is_int


def is_residual_scattered_for_sp(vllm_config: Any, num_input_tokens: int) -> bool:  # noqa: ANN401  (an engine's own config serves too)
    """Say whether the residual stream is scattered over the tensor-parallel ranks.

    It is where sequence parallelism is on, there are several ranks, and the graph is compiled as a
    whole, or else for this very number of tokens.

    Args:
        vllm_config: the configuration; `compilation_config` is read and `parallel_config`.
        num_input_tokens: tokens of the step, padding too.

    Returns:
        Whether it is scattered.

    Raises:
        TypeError: a number that is no int, a flag that is no bool.
        ValueError: a negative number of tokens; one that is no multiple of the ranks, where
            sequence parallelism is on.
        AttributeError: a configuration without what is read.

    Example:
        >>> from fast.config import CompilationConfig, ParallelConfig, PassConfig, VllmConfig
        >>> config = VllmConfig(
        ...     parallel_config=ParallelConfig(tensor_parallel_size=4),
        ...     compilation_config=CompilationConfig(
        ...         pass_config=PassConfig(enable_sp=True),
        ...         splitting_ops=["attention"],
        ...         compile_sizes=[8, 16],
        ...     ),
        ... )
        >>> is_residual_scattered_for_sp(config, 16), is_residual_scattered_for_sp(config, 32)
        (True, False)

    Source: the definition is kvtwin's own; the name is vLLM's.
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
