"""Invalid inputs of `max_memory_usage_bytes`: each number that a kind of spec reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import reference
from conformance.contracts.contract import InvalidInput
from conformance.invalid_inputs.changes import Refusals, chained, refusals, replaced, where
from conformance.invalid_inputs.kinds import Int, Kind, Object, invalid_by_kind
from conformance.invalid_inputs.kv_cache_spec import SPEC, abstract_specs, of_kinds
from conformance.strategies import kv_cache_spec
from conformance.strategies.kv_cache_spec import BOUNDED, EXAMPLES, FULL, READS
from conformance.values.call import Call

CONFIG = reference.VllmConfig(
    model_config=reference.ModelConfig(max_model_len=7),
    cache_config=reference.CacheConfig(),
    parallel_config=reference.ParallelConfig(),
    scheduler_config=reference.SchedulerConfig(max_num_batched_tokens=5, max_num_seqs=2),
)
"""A configuration with the fields that all kinds of specs read."""


def kind_of(call: Call) -> str:
    """Return the kind of a call's spec; of a uniform spec, the kind of its first layer."""
    return kv_cache_spec.kind_of(call.arguments["self"])


def _of_kinds(kinds: Sequence[str], invalid_inputs: Sequence[InvalidInput]) -> list[InvalidInput]:
    """Return the invalid inputs of configuration fields that only some kinds of specs read."""

    def example(kind: str) -> Call:
        arguments = {"self": EXAMPLES[kind], "vllm_config": CONFIG}
        return Call(f"{kind}.max_memory_usage_bytes", arguments)

    return of_kinds(kinds, invalid_inputs, kind_of, example)


NUMBERS = {
    "model_config.max_model_len": ((*FULL, *BOUNDED[:2]), Int()),
    "parallel_config.decode_context_parallel_size": ((*FULL, "SlidingWindowSpec"), Int()),
    "parallel_config.prefill_context_parallel_size": (FULL, Int()),
    "scheduler_config.max_num_batched_tokens": (BOUNDED[:2], Int()),
    "scheduler_config.max_num_encoder_input_tokens": (("CrossAttentionSpec",), Int(0)),
}
"""The numbers of a configuration, by the kinds of specs that read them."""

NUMBERS_AND_PARTS: dict[str, tuple[Sequence[str], Kind]] = {
    **NUMBERS,
    **{
        part: (
            [
                kind
                for path, (kinds, _) in NUMBERS.items()
                if path.startswith(part)
                for kind in kinds
            ],
            Object(reads="attribute"),
        )
        for part in ("model_config", "parallel_config", "scheduler_config")
    },
}
"""The numbers and the parts of a configuration, by the kinds of specs that read them."""

MODE = "vllm_config.cache_config.mamba_cache_mode"


def _of_all_blocks(invalid: InvalidInput) -> InvalidInput:
    """Return an invalid `max_model_len` in the Mamba cache mode "all", which reads it."""
    length = replaced("vllm_config.model_config", reference.ModelConfig(max_model_len=1))
    change = chained(replaced(MODE, "all"), length, invalid.change)
    return dataclasses.replace(invalid, name=f"{invalid.name} in mode all", change=change)


MODES: Refusals = {
    (ValueError, "mamba_cache_mode"): {
        f"mamba_cache_mode is {mode!r}": replaced(MODE, mode)
        for mode in ("", "ALL", None, True, ["all"])
    }
}

OF_MAMBA = [
    *map(_of_all_blocks, invalid_by_kind(**{"vllm_config.model_config.max_model_len": Int()})),
    *refusals(MODES),
    *invalid_by_kind(**{"vllm_config.cache_config": Object(reads="mamba_cache_mode")}),
]

RANKS = "decode_context_parallel_size"

WITH_WINDOW: Refusals = {
    (ValueError, RANKS): {
        "decode context parallelism with a window": replaced(
            f"vllm_config.parallel_config.{RANKS}", 2
        )
    }
}

MAX_MEMORY_INVALID_INPUTS = [
    *abstract_specs(
        "max_memory_usage_bytes",
        reference.KVCacheSpec(16),
        SPEC,
        vllm_config=reference.VllmConfig(),
    ),
    *(
        invalid
        for path, (kinds, kind) in NUMBERS_AND_PARTS.items()
        for invalid in _of_kinds(kinds, invalid_by_kind(**{f"vllm_config.{path}": kind}))
    ),
    *_of_kinds(("MambaSpec",), OF_MAMBA),
    *_of_kinds(("SlidingWindowSpec",), refusals(WITH_WINDOW)),
    *where(
        lambda call: READS[kind_of(call)], invalid_by_kind(vllm_config=Object(reads="attribute"))
    ),
]
