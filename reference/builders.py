"""Builders of attention metadata, alone and in groups: what a backend makes of a step's batch."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reference._checks import check_bool, check_index, check_int
from reference.metadata import CommonAttentionMetadata

MetadataT = TypeVar("MetadataT")


class AttentionMetadata:
    """The base of what builders make: a backend's own metadata of a batch. It is empty.

    Example:
        >>> class Lengths(AttentionMetadata):
        ...     pass
        >>> isinstance(Lengths(), AttentionMetadata)
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """


class AttentionCGSupport(enum.Enum):
    """How far a builder supports CUDA graphs of whole steps.

    Attributes:
        ALWAYS: For every batch, prefills and decodes mixed.
        UNIFORM_BATCH: For batches whose query lengths are all the same, as in speculative decoding.
        UNIFORM_SINGLE_TOKEN_DECODE: For batches whose query lengths are all 1.
        NEVER: For none.

    Example:
        >>> AttentionCGSupport.UNIFORM_BATCH.value
        2

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadataBuilder(ABC, Generic[MetadataT]):
    """What makes a backend's own metadata of a batch, for the layers of a group.

    Abstract in `build` alone, and generic in the class of what it builds. It stores what it is
    made with, and checks nothing of it.

    Args:
        kv_cache_spec: What each of the layers keeps in the cache.
        layer_names: The layers.
        vllm_config: The engine's configuration.
        device: Where metadata are built.

    Attributes:
        kv_cache_spec: As given.
        layer_names: As given, the same list.
        vllm_config: As given.
        device: As given.
        reorder_batch_threshold: The most query tokens of a request that counts as a decode when a
            batch is put in order; None: this builder wants no order. A class attribute until it is
            set.
        _cudagraph_support: What `get_cudagraph_support` says; a class attribute.

    Example:
        >>> from reference.config import VllmConfig
        >>> class Counter(AttentionMetadataBuilder[int]):
        ...     def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        ...         return common_attn_metadata.num_actual_tokens
        >>> builder = Counter(None, ["layers.0"], VllmConfig(), None)
        >>> builder.layer_names, builder.reorder_batch_threshold, builder.use_cascade_attention()
        (['layers.0'], None, False)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    _cudagraph_support: AttentionCGSupport = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None

    def __init__(
        self,
        kv_cache_spec: Any,  # noqa: ANN401  # an engine's own serves too
        layer_names: list[str],
        vllm_config: Any,  # noqa: ANN401  # likewise
        device: object,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    @classmethod
    def get_cudagraph_support(
        cls,
        vllm_config: object,  # noqa: ARG003  # for those who override it
        kv_cache_spec: object,  # noqa: ARG003  # likewise
    ) -> AttentionCGSupport:
        """Return how far builders of this class support CUDA graphs: `_cudagraph_support`.

        Args:
            vllm_config: Not read here; a class that overrides this may.
            kv_cache_spec: Likewise.
        """
        return cls._cudagraph_support

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        """Set `reorder_batch_threshold` to what the engine's configuration leaves of a wish.

        None stays None, and the configuration is not read. With `supports_spec_as_decode`, and
        where `vllm_config.speculative_config` is there and has `num_speculative_tokens` (neither
        absent nor None), the threshold is raised to `1 + num_speculative_tokens`: a request that
        verifies its draft still counts as a decode. Then, when
        `vllm_config.parallel_config.decode_context_parallel_size`, which is read in any case, is
        greater than 1, it is 1 without `supports_dcp_with_varlen`.

        Args:
            reorder_batch_threshold: The threshold wished for, at least 1; None: no order.
            supports_spec_as_decode: Whether requests that verify a draft may count as decodes.
            supports_dcp_with_varlen: Whether decodes of more than one token work with decode
                context parallelism.

        Raises:
            TypeError: A threshold, or a number of the configuration, that is not an int; a flag
                that is not a bool.
            ValueError: A threshold or a number of ranks below 1, a negative number of tokens.
            AttributeError: The configuration lacks an attribute that is read. The attribute is as
                it was after any of these.
        """
        with_drafts = check_bool("supports_spec_as_decode", supports_spec_as_decode)
        with_varlen = check_bool("supports_dcp_with_varlen", supports_dcp_with_varlen)
        if reorder_batch_threshold is None:
            self.reorder_batch_threshold = None
            return
        threshold = check_int("reorder_batch_threshold", reorder_batch_threshold, 1)
        if with_drafts:
            speculative_config = self.vllm_config.speculative_config
            num_drafts = getattr(speculative_config, "num_speculative_tokens", None)
            if num_drafts is not None:
                threshold = max(
                    threshold,
                    1 + check_int("speculative_config.num_speculative_tokens", num_drafts, 0),
                )
        dcp_size = self.vllm_config.parallel_config.decode_context_parallel_size
        if (
            check_int("parallel_config.decode_context_parallel_size", dcp_size, 1) > 1
            and not with_varlen
        ):
            threshold = 1
        self.reorder_batch_threshold = threshold

    @abstractmethod
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> MetadataT:
        """Build the backend's metadata of a batch.

        Args:
            common_prefix_len: How many first tokens all requests share, in the same blocks.
            common_attn_metadata: The batch.
            fast_build: Whether to be quick about it, for a metadata that is used only once or so.
        """

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> MetadataT:
        """Build the metadata with which a CUDA graph is captured: `build` without common prefix.

        Args:
            common_attn_metadata: The batch.
        """
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self,
        common_attn_metadata: CommonAttentionMetadata,
        draft_index: int,  # noqa: ARG002  # for those who override it
    ) -> MetadataT:
        """Build the metadata of a step of a draft model: `build`, fast, without common prefix.

        Args:
            common_attn_metadata: The batch.
            draft_index: Which of the draft's tokens the step makes. Not read here.
        """
        return self.build(
            common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True
        )

    def use_cascade_attention(
        self,
        *args: object,  # noqa: ARG002  # for those who override it
        **kwargs: object,  # noqa: ARG002  # likewise
    ) -> bool:
        """Say whether a common prefix is to be attended to apart: no.

        Args:
            *args: Not read here; a class that overrides this may.
            **kwargs: Likewise.
        """
        return False


@dataclass
class AttentionGroup:
    """The layers of one KV cache group that share a backend, and their builders.

    Attributes:
        backend: The class of the backend.
        metadata_builders: A builder for each micro-batch, so that builders with persistent
            CUDA-graph buffers do not disturb each other.
        layer_names: The layers.
        kv_cache_spec: What each of the layers keeps in the cache.

    Example:
        >>> class Plain:
        ...     get_builder_cls = staticmethod(lambda: lambda *args: f"builder of {args[1]}")
        >>> group = AttentionGroup.create_with_metadata_builders(
        ...     Plain, ["layers.0"], None, None, None, num_metadata_builders=2
        ... )
        >>> group.get_metadata_builder(1)
        "builder of ['layers.0']"
        >>> group.get_metadata_builder(2)
        Traceback (most recent call last):
        IndexError: ubatch_id is 2, expected 0 to 1

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    backend: Any
    metadata_builders: list[Any]
    layer_names: list[str]
    kv_cache_spec: Any

    @staticmethod
    def create_with_metadata_builders(
        backend: Any,  # noqa: ANN401  # an engine's own serves too
        layer_names: list[str],
        kv_cache_spec: Any,  # noqa: ANN401  # likewise
        vllm_config: Any,  # noqa: ANN401  # likewise
        device: object,
        num_metadata_builders: int = 1,
    ) -> AttentionGroup:
        """Make a group and its builders.

        Each builder is made by position:
        `backend.get_builder_cls()(kv_cache_spec, layer_names, vllm_config, device)`.

        Args:
            backend: The class of the backend.
            layer_names: The layers; the group and its builders keep this same list.
            kv_cache_spec: What each of the layers keeps in the cache.
            vllm_config: The engine's configuration.
            device: Where metadata are built.
            num_metadata_builders: How many builders to make, at least 1.

        Raises:
            TypeError: A number that is not an int.
            ValueError: A number below 1.
            AttributeError: A backend without `get_builder_cls`.
        """
        number = check_int("num_metadata_builders", num_metadata_builders, 1)
        builder_cls = backend.get_builder_cls()
        builders = [
            builder_cls(kv_cache_spec, layer_names, vllm_config, device) for _ in range(number)
        ]
        return AttentionGroup(backend, builders, layer_names, kv_cache_spec)

    def get_metadata_builder(self, ubatch_id: int = 0) -> Any:  # noqa: ANN401  # an engine's own
        """Return the builder of a micro-batch.

        Args:
            ubatch_id: The number of the micro-batch, from 0.

        Raises:
            TypeError: A number that is not an int.
            IndexError: A number that there is no builder of; a negative one too.
        """
        builders = self.metadata_builders
        return builders[check_index("ubatch_id", ubatch_id, len(builders))]
