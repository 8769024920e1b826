"""Bad calls of `max_memory_usage_bytes`: of each number that a kind of spec reads."""

from __future__ import annotations

import dataclasses

import reference
from conformance.contracts import Call, Change, InvalidInput
from conformance.invalid_inputs.kv_cache_spec import SPEC, abstract_faults, bad_ints, guest
from conformance.strategies.kv_cache_spec import BOUNDED, EXAMPLES, FULL, READS

CONFIG = reference.VllmConfig(
    model_config=reference.ModelConfig(max_model_len=7),
    cache_config=reference.CacheConfig(),
    parallel_config=reference.ParallelConfig(),
    scheduler_config=reference.SchedulerConfig(max_num_batched_tokens=5, max_num_seqs=2),
)
"""One that all kinds can read."""


def kind_of(call: Call) -> str:
    """Return the kind of a call's spec; of a uniform spec that of its first."""
    spec = call.arguments["self"]
    first = next(iter(getattr(spec, "kv_cache_specs", {"": spec}).values()))
    return type(first).__name__


def _config(path: str, value: object, *kinds: str) -> Change:
    """Return a fault in what some kinds read of a configuration."""
    part, _, name = path.partition(".")

    def breaks(call: Call) -> Call | None:
        if kind_of(call) not in kinds:
            kind = guest(call, kinds, (path, value))
            if kind is None:
                return None
            call = Call(f"{kind}.max_memory_usage_bytes", {"self": EXAMPLES[kind]}, call.facts)
            call = call.replacing(vllm_config=CONFIG)
        config = call.arguments["vllm_config"]
        bad = value
        if name:
            bad = dataclasses.replace(getattr(config, part), **{name: value})
        return call.replacing(vllm_config=dataclasses.replace(config, **{part: bad}))

    return breaks


def _mode_all(breaks: Change) -> Change:
    """Return a fault of Mamba layers that cache the states of all blocks."""

    def both(call: Call) -> Call | None:
        changed_call = _config("cache_config.mamba_cache_mode", "all", "MambaSpec")(call)
        model = reference.ModelConfig(max_model_len=1)
        if changed_call is None:
            return None
        config = dataclasses.replace(changed_call.arguments["vllm_config"], model_config=model)
        return breaks(changed_call.replacing(vllm_config=config))

    return both


READERS = {
    "model_config.max_model_len": (*FULL, *BOUNDED[:2]),
    "parallel_config.decode_context_parallel_size": (*FULL, "SlidingWindowSpec"),
    "parallel_config.prefill_context_parallel_size": FULL,
    "scheduler_config.max_num_batched_tokens": BOUNDED[:2],
    "scheduler_config.max_num_encoder_input_tokens": ("CrossAttentionSpec",),
}
"""The kinds that read a number of a configuration."""


def _reads_anything(call: Call) -> Call | None:
    return call.replacing(vllm_config=None) if READS[kind_of(call)] else None


def _number_faults(path: str) -> list[InvalidInput]:
    name = path.rsplit(".", 1)[1]
    least = 0 if "encoder" in name else 1
    return [
        InvalidInput(f"{name} is {what}", error, name, _config(path, value, *READERS[path]))
        for what, error, value in bad_ints(least)
    ]


MAX_MEMORY_INVALID_INPUTS = [
    *abstract_faults(
        "max_memory_usage_bytes",
        reference.KVCacheSpec(16),
        SPEC,
        vllm_config=reference.VllmConfig(),
    ),
    *(fault for path in READERS for fault in _number_faults(path)),
    *(
        InvalidInput(
            f"max_model_len is {what} in mode all",
            error,
            "max_model_len",
            _mode_all(_config("model_config.max_model_len", value, "MambaSpec")),
        )
        for what, error, value in bad_ints()
    ),
    InvalidInput(
        "decode context parallelism with a window",
        ValueError,
        "decode_context_parallel_size",
        _config("parallel_config.decode_context_parallel_size", 2, "SlidingWindowSpec"),
    ),
    *(
        InvalidInput(
            f"mamba_cache_mode is {mode!r}",
            ValueError,
            "mamba_cache_mode",
            _config("cache_config.mamba_cache_mode", mode, "MambaSpec"),
        )
        for mode in ("", "ALL", None, True, ["all"])
    ),
    InvalidInput("there is no configuration", AttributeError, "attribute", _reads_anything),
    *(
        InvalidInput(
            f"{part} is None",
            AttributeError,
            "attribute",
            _config(
                part,
                None,
                *(kind for path in READERS if path.startswith(part) for kind in READERS[path]),
            ),
        )
        for part in ("model_config", "parallel_config", "scheduler_config")
    ),
    InvalidInput(
        "cache_config is None",
        AttributeError,
        "mamba_cache_mode",
        _config("cache_config", None, "MambaSpec"),
    ),
]
