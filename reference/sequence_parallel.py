"""Sequence parallelism: whether the residual stream is scattered over the ranks."""

from __future__ import annotations

from typing import Any

from reference._checks import check_bool, check_int, check_ints, check_type


def is_residual_scattered_for_sp(vllm_config: Any, num_input_tokens: int) -> bool:
    """Return whether the residual stream is scattered over the tensor-parallel ranks.

    The first case that applies gives the result; the attributes of later cases are not read:

    - `compilation_config.pass_config.enable_sp` is False: no.
    - `parallel_config.tensor_parallel_size` is 1: no.
    - The number of tokens is not a multiple of that size: a `ValueError`. The runner pads it.
    - `compilation_config.splitting_ops` is None or empty: the graph is compiled as a whole, so yes.
    - `compilation_config.use_inductor_graph_partition` is True: it is compiled as a whole, so yes.
    - Otherwise: whether the number of tokens is in `compilation_config.compile_sizes`; None: no.

    Args:
        vllm_config: The engine's configuration. The attributes above are two bools, an int of at
            least 1, a list or tuple of operators or None, and a list of ints or None.
        num_input_tokens: Number of tokens of the step, padding included, at least 0. It is checked
            first.

    Returns:
        Whether it is scattered.

    Raises:
        TypeError: A number, or a part of the configuration, of the wrong type.
        ValueError: A negative number of tokens, or one that is not a multiple of the number of
            ranks; a number of ranks below 1.
        AttributeError: A configuration that lacks an attribute that is read.

    Example:
        >>> from reference.config import CompilationConfig, ParallelConfig, PassConfig, VllmConfig
        >>> config = VllmConfig(
        ...     parallel_config=ParallelConfig(tensor_parallel_size=4),
        ...     compilation_config=CompilationConfig(
        ...         pass_config=PassConfig(enable_sp=True),
        ...         splitting_ops=["attention"],
        ...         compile_sizes=[8],
        ...     ),
        ... )
        >>> is_residual_scattered_for_sp(config, 8), is_residual_scattered_for_sp(config, 12)
        (True, False)
        >>> is_residual_scattered_for_sp(config, 6)
        Traceback (most recent call last):
        ValueError: num_input_tokens is 6, expected a multiple of the 4 tensor-parallel ranks: the \
runner pads it where sequence parallelism is on

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    num_tokens = check_int("num_input_tokens", num_input_tokens, 0)
    compilation_config = vllm_config.compilation_config
    if not check_bool(
        "compilation_config.pass_config.enable_sp", compilation_config.pass_config.enable_sp
    ):
        return False
    num_ranks = check_int(
        "parallel_config.tensor_parallel_size", vllm_config.parallel_config.tensor_parallel_size, 1
    )
    if num_ranks == 1:
        return False
    if num_tokens % num_ranks != 0:
        raise ValueError(
            f"num_input_tokens is {num_tokens}, expected a multiple of the {num_ranks} "
            "tensor-parallel ranks: the runner pads it where sequence parallelism is on"
        )

    splitting_ops = compilation_config.splitting_ops
    if splitting_ops is None or not check_type(
        "compilation_config.splitting_ops", splitting_ops, list | tuple
    ):
        return True
    is_partitioned = compilation_config.use_inductor_graph_partition
    if check_bool("compilation_config.use_inductor_graph_partition", is_partitioned):
        return True
    compile_sizes = compilation_config.compile_sizes
    return compile_sizes is not None and num_tokens in check_ints(
        "compilation_config.compile_sizes", compile_sizes
    )
