"""Builders, which turn a step's batch into the metadata that a backend's kernels read."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reference._checks import check_bool, check_index, check_int
from reference.metadata import CommonAttentionMetadata

MetadataT = TypeVar("MetadataT")


class AttentionMetadata:
    """The base class of what builders return: a backend's own metadata of a batch. It is empty.

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
    """Build a backend's own metadata of a batch, for the layers of a group.

    Only `build` is abstract. The class is generic in the class of what it builds. The constructor
    stores its arguments and checks nothing.

    Args:
        kv_cache_spec: What each of the layers keeps in the cache.
        layer_names: The layers.
        vllm_config: The engine's configuration.
        device: The device on which metadata are built.

    Attributes:
        kv_cache_spec: As given.
        layer_names: As given, the same list.
        vllm_config: As given.
        device: As given.
        reorder_batch_threshold: The most query tokens of a request that counts as a decode when a
            batch is reordered; None: this builder needs no order. A class attribute until it is
            set.
        _cudagraph_support: What `get_cudagraph_support` returns; a class attribute.

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
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: object
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
            vllm_config: Not read here; a subclass may.
            kv_cache_spec: Not read here; a subclass may.
        """
        return cls._cudagraph_support

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        """Set `reorder_batch_threshold`, adapted to the engine's configuration.

        None stays None, and the configuration is not read. Otherwise:

        - With `supports_spec_as_decode`, if `vllm_config.speculative_config` and its
          `num_speculative_tokens` exist and are not None, the threshold is raised to at least
          `1 + num_speculative_tokens`: a request that verifies its draft still counts as a decode.
        - Then, without `supports_dcp_with_varlen`, it is 1 if
          `vllm_config.parallel_config.decode_context_parallel_size` is greater than 1. That
          attribute is read in any case.

        Args:
            reorder_batch_threshold: The requested threshold, at least 1; None: no order.
            supports_spec_as_decode: Whether requests that verify a draft may count as decodes.
            supports_dcp_with_varlen: Whether decodes of more than one token work with decode
                context parallelism.

        Raises:
            TypeError: A threshold, or a number in the configuration, that is not an int; a flag
                that is not a bool.
            ValueError: A threshold or a number of ranks below 1, a negative number of draft tokens.
            AttributeError: A configuration that lacks an attribute that is read. After any error
                `reorder_batch_threshold` is unchanged.
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
            common_prefix_len: The number of first tokens that all requests share, in the same
                blocks.
            common_attn_metadata: The batch.
            fast_build: Whether a fast build matters more than fast kernels, as for a metadata that
                is used once.

        Returns:
            The metadata that the backend's kernels read.
        """

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> MetadataT:
        """Build the metadata for the capture of a CUDA graph: `build` without a common prefix.

        Args:
            common_attn_metadata: The batch.
        """
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self,
        common_attn_metadata: CommonAttentionMetadata,
        draft_index: int,  # noqa: ARG002  # for those who override it
    ) -> MetadataT:
        """Build the metadata of a step of a draft model: `build`, fast and without a common prefix.

        Args:
            common_attn_metadata: The batch.
            draft_index: Which of the draft tokens the step makes, from 0. Not read here; a subclass
                may.
        """
        return self.build(
            common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True
        )

    def use_cascade_attention(
        self,
        *args: object,  # noqa: ARG002  # for those who override it
        **kwargs: object,  # noqa: ARG002  # likewise
    ) -> bool:
        """Return whether to compute attention to a common prefix separately; by default False.

        Args:
            *args: Not read here; a subclass may.
            **kwargs: Not read here; a subclass may.
        """
        return False


@dataclass
class AttentionGroup:
    """The layers of one KV cache group that share a backend, and their builders.

    Attributes:
        backend: The class of the backend.
        metadata_builders: A builder for each micro-batch, so that builders with persistent
            CUDA-graph buffers do not overwrite each other's.
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
        backend: Any,
        layer_names: list[str],
        kv_cache_spec: Any,
        vllm_config: Any,
        device: object,
        num_metadata_builders: int = 1,
    ) -> AttentionGroup:
        """Make a group and its builders.

        Each builder is made with positional arguments:
        `backend.get_builder_cls()(kv_cache_spec, layer_names, vllm_config, device)`.

        Args:
            backend: The class of the backend.
            layer_names: The layers; the group and its builders keep this same list.
            kv_cache_spec: What each of the layers keeps in the cache.
            vllm_config: The engine's configuration.
            device: The device on which metadata are built.
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

    def get_metadata_builder(self, ubatch_id: int = 0) -> Any:
        """Return the builder of a micro-batch.

        Args:
            ubatch_id: The number of the micro-batch, from 0.

        Raises:
            TypeError: A number that is not an int.
            IndexError: A number without a builder; a negative number.
        """
        builders = self.metadata_builders
        return builders[check_index("ubatch_id", ubatch_id, len(builders))]
