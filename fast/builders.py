"""Define builders, which turn a batch into the metadata that a backend's kernels read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from fast._checks import check_bool, check_index, check_int
from fast.metadata import CommonAttentionMetadata

M = TypeVar("M")


class AttentionMetadata:
    """The base class of a backend's own metadata of a batch, which builders return.

    Definition: `reference.AttentionMetadata`.
    """


class AttentionCGSupport(Enum):
    """The levels of a builder's support for CUDA graphs of whole steps.

    Definition: `reference.AttentionCGSupport`.
    """

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadataBuilder(ABC, Generic[M]):
    """Build a backend's own metadata of a batch, for the layers of a group.

    Definition: `reference.AttentionMetadataBuilder`.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    @classmethod
    def get_cudagraph_support(
        cls,
        vllm_config: Any,  # noqa: ARG003  (an engine's own; a subclass may read it)
        kv_cache_spec: Any,  # noqa: ARG003  (likewise)
    ) -> AttentionCGSupport:
        """Return the level of support for CUDA graphs of builders of this class.

        Definition: `reference.AttentionMetadataBuilder.get_cudagraph_support`.
        """
        return cls._cudagraph_support

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        """Set `reorder_batch_threshold`, adapted to the engine's configuration.

        Definition: `reference.AttentionMetadataBuilder._init_reorder_batch_threshold`.
        """
        check_bool("supports_spec_as_decode", supports_spec_as_decode)
        check_bool("supports_dcp_with_varlen", supports_dcp_with_varlen)
        if reorder_batch_threshold is None:
            self.reorder_batch_threshold = None
            return
        threshold = check_int("reorder_batch_threshold", reorder_batch_threshold, maximum=None)
        if supports_spec_as_decode:
            threshold = max(threshold, 1 + self._num_draft_tokens())
        num_ranks = check_int(
            "parallel_config.decode_context_parallel_size",
            self.vllm_config.parallel_config.decode_context_parallel_size,
            maximum=None,
        )
        if num_ranks > 1 and not supports_dcp_with_varlen:
            threshold = 1
        self.reorder_batch_threshold = threshold

    def _num_draft_tokens(self) -> int:
        """Return the draft tokens of a request in each step; 0 if the configuration has none."""
        drafts = getattr(self.vllm_config.speculative_config, "num_speculative_tokens", None)
        if drafts is None:
            return 0
        return check_int("speculative_config.num_speculative_tokens", drafts, 0, None)

    @abstractmethod
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> M:
        """Build the backend's metadata of a batch.

        Definition: `reference.AttentionMetadataBuilder.build`.
        """

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        """Build the metadata for the capture of a CUDA graph.

        Definition: `reference.AttentionMetadataBuilder.build_for_cudagraph_capture`.
        """
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self,
        common_attn_metadata: CommonAttentionMetadata,
        draft_index: int,  # noqa: ARG002  (a subclass may read it)
    ) -> M:
        """Build the metadata of a step of a draft model.

        Definition: `reference.AttentionMetadataBuilder.build_for_drafting`.
        """
        return self.build(
            common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True
        )

    def use_cascade_attention(self, *args: object, **kwargs: object) -> bool:  # noqa: ARG002  (a subclass may read them)
        """Return whether to compute attention to a common prefix separately; by default False.

        Definition: `reference.AttentionMetadataBuilder.use_cascade_attention`.
        """
        return False


@dataclass
class AttentionGroup:
    """The layers of one KV cache group that share a backend, and their builders.

    Definition: `reference.AttentionGroup`.
    """

    backend: Any
    metadata_builders: list[Any]
    layer_names: list[str]
    kv_cache_spec: Any

    @staticmethod
    def create_with_metadata_builders(
        backend: Any,
        layer_names: list[str],
        kv_cache_spec: Any,
        vllm_config: Any,
        device: Any,
        num_metadata_builders: int = 1,
    ) -> "AttentionGroup":
        """Make a group and its builders.

        Definition: `reference.AttentionGroup.create_with_metadata_builders`.
        """
        count = check_int("num_metadata_builders", num_metadata_builders, maximum=None)
        builder_cls = backend.get_builder_cls()
        builders = [
            builder_cls(kv_cache_spec, layer_names, vllm_config, device) for _ in range(count)
        ]
        return AttentionGroup(backend, builders, layer_names, kv_cache_spec)

    def get_metadata_builder(self, ubatch_id: int = 0) -> Any:
        """Return the builder of a micro-batch.

        Definition: `reference.AttentionGroup.get_metadata_builder`.
        """
        return self.metadata_builders[
            check_index("ubatch_id", ubatch_id, len(self.metadata_builders))
        ]
