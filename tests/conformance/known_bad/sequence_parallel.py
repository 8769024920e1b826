"""Whether a residual is scattered, as one decides it in a hurry."""

# ruff: noqa: ANN401, C901, PLR0911, PLR0912  # an engine's own configuration; a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fast
from known_bad.entries import rewritten

REAL = fast.is_residual_scattered_for_sp


def _make(bug: str | None) -> Callable[..., bool]:
    def is_residual_scattered_for_sp(vllm_config: Any, num_input_tokens: Any) -> bool:
        try:
            REAL(vllm_config, num_input_tokens)
        except ValueError:
            is_number = type(num_input_tokens) is int and num_input_tokens > 0
            if bug == "what does not divide is not scattered" and is_number:
                return False
            raise
        number = int(num_input_tokens)
        compilation = vllm_config.compilation_config
        if bug == "what does not divide is refused first":
            ranks = getattr(vllm_config, "parallel_config", None)
            if ranks is not None and number % ranks.tensor_parallel_size:
                raise ValueError("num_input_tokens is no multiple")
        if not compilation.pass_config.enable_sp:
            return False
        if vllm_config.parallel_config.tensor_parallel_size == 1:
            return bug == "one rank is a group too"
        if bug == "no tokens are not scattered" and not number:
            return False
        operators = compilation.splitting_ops
        is_whole = operators is None if bug == "an empty list cuts" else not operators
        if bug == "None is the engine's own choice":
            is_whole = operators is not None and not operators
        if is_whole:
            return True
        if getattr(compilation, "use_inductor_graph_partition", False):
            return bug != "a graph that the compiler cuts is cut"
        sizes = getattr(compilation, "compile_sizes", None)
        if sizes is None:
            return bug == "no sizes are all sizes"
        if bug == "up to the largest size":
            return number <= max(sizes, default=-1)
        if bug == "any size will do":
            return bool(sizes)
        return number in sizes

    return is_residual_scattered_for_sp


SEQUENCE_PARALLEL = rewritten(
    "is_residual_scattered_for_sp",
    _make,
    answers={
        "what does not divide is refused first": "It is padded where it is on.",
        "one rank is a group too": "It has all of the residual: nothing to see.",
        "no tokens are not scattered": "0 is false.",
        "an empty list cuts": "`is None`.",
        "None is the engine's own choice": "As the configuration's words are.",
        "a graph that the compiler cuts is cut": "By its name.",
        "no sizes are all sizes": "As it is elsewhere.",
        "up to the largest size": "As it is with the sizes of CUDA graphs.",
        "any size will do": "A flag, one thinks.",
    },
    refusals={"what does not divide is not scattered": "A quiet fallback."},
)
