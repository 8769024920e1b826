"""vLLM's objects: ours converted to its classes, and its results back to ours.

Classes with our fields (specs, slices, parameters of layers) are vLLM's own. Attention metadata has
other fields and is converted.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np

import reference
from conformance.adapters.base import Adapter, Deviation, Unsupported, is_given, supplied
from conformance.adapters.vllm import places, second_runner
from conformance.adapters.vllm.calls import Calls
from conformance.adapters.vllm.deviations import DEVIATIONS
from conformance.adapters.vllm.preconditions import PRECONDITIONS, UNSUPPORTED_MODES

METADATA: Final = "CommonAttentionMetadata"

FIELDS: Final[Mapping[str, str]] = {
    **{
        name: name
        for name in (
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens",
            "num_reqs",
            "num_actual_tokens",
            "max_query_len",
            "max_seq_len",
            "block_table_tensor",
            "slot_mapping",
            "causal",
            "logits_indices_padded",
            "num_logits_indices",
            "dcp_local_seq_lens",
            "is_prefilling",
            "positions",
            "dcp_local_seq_lens_cpu_upper_bound",
            "max_logits_per_req",
            "req_idx",
        )
    },
    "seq_lens_cpu": "seq_lens_cpu_upper_bound",
    "encoder_seq_lens": "encoder_seq_lens_cpu",
}
"""vLLM's name of each of our fields of the metadata that it has."""

COUNTS: Final = ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len")
"""Fields that may be NumPy scalars or 0-dimensional tensors."""

OF_EACH_SPEC: Final = ("page_size_bytes", "max_memory_usage_bytes", "copy_with_new_block_size")
"""Members that each kind of spec defines itself."""

UNIFORM: Final = tuple(
    f"UniformTypeKVCacheSpecs.{method}" for method in ("from_specs", "is_uniform_type")
)
"""The methods that compare specs."""

CALLED_BY_NAME: Final = (*places.SPECS, "PerLayerParameters", "KVCacheGroupSpec", "KVCacheConfig")
"""Classes whose fields are in another order, or must be given by name."""


def _has_lists(shapes: Sequence[object]) -> bool:
    return isinstance(shapes, list) or any(isinstance(shape, list) for shape in shapes)


def _is_none(value: object) -> bool:
    return value is None


def _ends_before_it_starts(tokens: slice) -> bool:
    return isinstance(tokens, slice) and bool(tokens.stop < tokens.start)


class VllmAdapter(Adapter):
    """Converts objects of vLLM, which does not validate its input."""

    releases = places.RELEASES
    validates = False
    lacks = frozenset({"num_computed_tokens_cpu", "seq_lens_cpu_upper_bound"})
    parameters: ClassVar[Mapping[str, Mapping[str, str]]] = {
        name: {field: field for field in inspect.signature(getattr(reference, name)).parameters}
        for name in CALLED_BY_NAME
    }
    unsupported: ClassVar[Mapping[str, Mapping[str, Callable[[Any], bool]]]] = {
        "CpuGpuBuffer": {"pin_memory": bool},
        "MambaSpec": {"shapes": _has_lists},
        "MLAAttentionSpec": {"cache_dtype_str": lambda text: text == "fp8_ds_mla"},
        "UBatchSlice": dict.fromkeys(("request_slice", "token_slice"), _ends_before_it_starts),
        "bind_kv_cache": {"num_attn_module": _is_none},
        "extract_layer_index": {"num_attn_module": _is_none},
        "get_dcp_local_seq_lens": {"out": is_given},
        **second_runner.UNSUPPORTED,
    }
    deviations: ClassVar[tuple[Deviation, ...]] = DEVIATIONS
    preconditions = PRECONDITIONS
    unsupported_modes = UNSUPPORTED_MODES

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module)
        self._calls = Calls(self.ours)

    def find(self, name: str) -> Any:
        found = places.find(name)
        owner, _, member = name.partition(".")
        if owner in places.SPECS and member in OF_EACH_SPEC:
            return _of_object(member)
        if name in UNIFORM:
            return _of_uniform(found)
        return getattr(self._calls, name, found)

    def function(self, name: str) -> Callable[..., Any]:
        if name in places.OTHER_CLASSES:
            raise Unsupported(places.OTHER_CLASSES[name])
        found = self.find(name)
        is_own = isinstance(found, type) and not self.is_data(name) and name not in self.parameters
        return found if is_own else super().function(name)

    def is_data(self, name: str) -> bool:
        """Return whether objects of a class are converted: only the metadata."""
        return name == METADATA

    def new(self, class_name: str, **fields: Any) -> Any:
        """Return a stub if the class is converted, else an object of vLLM's class."""
        if self.is_data(class_name):
            return self.made(class_name, **fields)
        cls = self.find(class_name)
        known = inspect.signature(cls).parameters
        for name in fields.keys() - known:
            raise Unsupported(f"{name} of {class_name}")
        if fields.get("cache_dtype_str") == "fp8_ds_mla":
            raise Unsupported("the format fp8_ds_mla, whose size the layers compute")
        return cls(**{name: _plain(value) for name, value in fields.items()})

    def theirs(self, ours: Any, done: dict[int, Any] | None = None) -> Any:
        """Convert an argument; NumPy's numbers become Python's."""
        return _plain(ours) if isinstance(ours, np.generic) else super().theirs(ours, done)

    def ours(self, theirs: Any) -> Any:
        """Convert a result; NumPy's integers become Python's."""
        return int(theirs) if isinstance(theirs, np.integer) else super().ours(theirs)

    def result(self, function: str, theirs: Any, arguments: Mapping[str, Any]) -> Any:
        """Convert a result; the counts of a split may be 0-dimensional tensors."""
        if function.startswith("split_decodes"):
            return tuple(int(count) for count in theirs)
        return super().result(function, theirs, arguments)

    def metadata(self, ours: Any) -> Any:
        if type(ours).__name__ != METADATA:
            return ours
        if ours.seq_lens_cpu is None:
            # vLLM has one field for both: its results do not say whether they are bounds.
            raise Unsupported("lengths that the host does not know")
        fields = {theirs: _plain(getattr(ours, name)) for name, theirs in FIELDS.items()}
        made = self.find(METADATA)(**fields)
        made.converted_from = ours  # if it is returned unchanged, ours is
        return made

    def our_spec(self, theirs: Any) -> Any:
        return _with_text(theirs)

    def our_metadata(self, theirs: Any) -> Any:
        """Return our metadata; copies on the CPU that vLLM does not have are supplied."""
        if not isinstance(theirs, self.find(METADATA)):
            return theirs
        if hasattr(theirs, "converted_from"):
            return theirs.converted_from
        fields = {name: getattr(theirs, known) for name, known in FIELDS.items()}
        fields |= {name: int(fields[name]) for name in COUNTS}
        if fields["seq_lens_cpu"] is None:
            fields["seq_lens_cpu"] = supplied(theirs.seq_lens)
        computed = theirs.seq_lens - theirs.query_start_loc.diff()
        fields["num_computed_tokens_cpu"] = supplied(computed, is_known=False)
        fields["seq_lens_cpu_upper_bound"] = supplied(fields["seq_lens_cpu"], is_known=False)
        return self.made(METADATA, **fields)

    def config(self, ours: Any) -> Any:
        """Return a config with Python's numbers, and the tokens in flight."""
        values = {name: self._config_value(value) for name, value in vars(ours).items()}
        made = SimpleNamespace(**values)
        if hasattr(made, SHARE):
            made.gpu_memory_utilization = float(made.gpu_memory_utilization)
        scheduler = getattr(ours, "scheduler_config", None)
        if scheduler is not None:
            made.max_in_flight_tokens = getattr(made.scheduler_config, TOKENS_OF_A_STEP, None)
        return made

    def _config_value(self, value: Any) -> Any:
        return self.config(value) if self.kind_of(value) == "config" else _plain(value)


TOKENS_OF_A_STEP: Final = "max_num_batched_tokens"
SHARE: Final = "gpu_memory_utilization"
DCP: Final = "decode_context_parallel_size"
PCP: Final = "prefill_context_parallel_size"


def _of_object(member: str) -> Callable[..., Any]:
    """Return the function that calls a method, or reads a property, of an object's own class."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if member == "max_memory_usage_bytes":
            _check_memory(self, *args, **kwargs)
        found = getattr(self, member)
        made = found(*args, **kwargs) if callable(found) else found
        return _with_text(made)

    return call


def _with_text(spec: Any) -> Any:
    """Return a spec whose type of Mamba is its name; vLLM has an enum."""
    for one in (spec, *getattr(spec, "kv_cache_specs", {}).values()):
        if isinstance(getattr(one, "mamba_type", None), enum.Enum):  # of a frozen class
            object.__setattr__(one, "mamba_type", one.mamba_type.name.lower())
    return spec


def _of_uniform(found: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of a method that compares specs, which first calls `_check_uniform`."""

    def call(specs: Mapping[str, Any]) -> Any:
        _check_uniform(specs.values())
        return found(specs)

    return call


def _plain(value: Any) -> Any:
    """Return Python's number in place of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _check_memory(spec: Any, vllm_config: Any) -> None:
    """Check that vLLM computes `max_memory_usage_bytes` of a spec by our rules.

    Raises:
        Unsupported: It does not.
    """
    for inner in getattr(spec, "kv_cache_specs", {}).values():
        _check_memory(inner, vllm_config)
    kind = [base.__name__ for base in type(spec).__mro__]
    parallel = getattr(vllm_config, "parallel_config", None)
    if "SlidingWindowSpec" in kind and getattr(parallel, DCP, 1) != 1:
        raise Unsupported("decode context parallelism with sliding windows")
    if "FullAttentionSpec" in kind and getattr(parallel, PCP, 1) != 1:
        raise Unsupported("prefill context parallelism, which does not divide the cache")
    if "MambaSpec" in kind and vllm_config.cache_config.mamba_cache_mode == "all":
        raise Unsupported("the mode 'all' of Mamba's cache")


def _check_uniform(specs: Iterable[Any]) -> None:
    """Check that vLLM decides by our rules whether specs are uniform.

    Raises:
        Unsupported: It also compares the pages of Mamba layers.
    """
    pages = {spec.page_size_bytes for spec in specs if type(spec).__name__ == "MambaSpec"}
    if len(pages) > 1:
        raise Unsupported("Mamba layers with unequal page sizes")
