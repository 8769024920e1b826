"""What attention builders are: they turn a batch into what a backend's kernels read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from fast._checks import check_bool, check_index, check_int
from fast.metadata import CommonAttentionMetadata

M = TypeVar("M")


class AttentionMetadata:
    """The base class of what builders return: what a backend's kernels are told of a batch.

    Example:
        >>> class Lengths(AttentionMetadata):
        ...     longest = 8
        >>> isinstance(Lengths(), AttentionMetadata)
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """


class AttentionCGSupport(Enum):
    """How far a builder supports CUDA graphs; more is greater.

    Attributes:
        ALWAYS: any batch, prefill and decode mixed.
        UNIFORM_BATCH: batches in which all query lengths are the same, as in speculative decoding.
        UNIFORM_SINGLE_TOKEN_DECODE: batches in which all query lengths are 1.
        NEVER: none.

    Example:
        >>> AttentionCGSupport.UNIFORM_BATCH.value > AttentionCGSupport.NEVER.value
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadataBuilder(ABC, Generic[M]):
    """What builds a backend's metadata of a batch; a subclass says how in `build`.

    Attributes:
        kv_cache_spec: what each of the layers keeps in the cache.
        layer_names: the layers that it builds for.
        vllm_config: the engine's configuration.
        device: where the metadata's tensors are.
        reorder_batch_threshold: the most new tokens of a request that counts as a decode, where
            decodes must stand first in a batch; None: the order does not matter.

    Args:
        kv_cache_spec: what each of the layers keeps in the cache.
        layer_names: the layers that it builds for.
        vllm_config: the engine's configuration.
        device: where the metadata's tensors are.

    Example:
        >>> class Tokens(AttentionMetadataBuilder[int]):
        ...     def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        ...         return common_attn_metadata.num_actual_tokens
        >>> builder = Tokens(None, ["layers.0.attn"], None, "cpu")
        >>> builder.get_cudagraph_support(None, None), builder.reorder_batch_threshold
        (<AttentionCGSupport.NEVER: 0>, None)

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None

    def __init__(
        self,
        kv_cache_spec: Any,  # noqa: ANN401  (an engine's own spec serves too)
        layer_names: list[str],
        vllm_config: Any,  # noqa: ANN401  (an engine's own config serves too)
        device: Any,  # noqa: ANN401  (whatever the subclass takes for a device)
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    @classmethod
    def get_cudagraph_support(
        cls,
        vllm_config: Any,  # noqa: ANN401, ARG003  (an engine's own; a subclass may read it)
        kv_cache_spec: Any,  # noqa: ANN401, ARG003  (likewise)
    ) -> AttentionCGSupport:
        """Return how far the builder supports CUDA graphs: its `_cudagraph_support`.

        Args:
            vllm_config: the engine's configuration.
            kv_cache_spec: what each layer keeps in the cache.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return cls._cudagraph_support

    def _init_reorder_batch_threshold(
        self,
        reorder_batch_threshold: int | None = 1,
        supports_spec_as_decode: bool = False,
        supports_dcp_with_varlen: bool = False,
    ) -> None:
        """Set `reorder_batch_threshold` to what the configuration makes of it.

        Args:
            reorder_batch_threshold: the most new tokens of a decode; None: sets None, and reads
                nothing else.
            supports_spec_as_decode: whether a request that brings draft tokens counts as a decode:
                then the threshold is at least 1 + the number of draft tokens.
            supports_dcp_with_varlen: whether decodes may be of more than one token where ranks
                share a sequence in decode; if not, the threshold is 1 there.

        Raises:
            TypeError: not an int, or not a bool.
            ValueError: a threshold or a number of ranks below 1, a negative number of draft tokens.
            AttributeError: a configuration without what is read.
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
        """Return the draft tokens of a request in each step; 0 where no config states them."""
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
        """Build the metadata of a batch.

        Args:
            common_prefix_len: tokens at the start that all sequences have in common.
            common_attn_metadata: the batch.
            fast_build: whether building fast matters more than fast kernels.

        Returns:
            What the backend's kernels read.
        """

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        """Build the metadata of a batch over which a CUDA graph is captured.

        Args:
            common_attn_metadata: the batch.

        Returns:
            What `build` makes of it, without a common prefix.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self,
        common_attn_metadata: CommonAttentionMetadata,
        draft_index: int,  # noqa: ARG002  (a subclass may read it)
    ) -> M:
        """Build the metadata of a batch of draft tokens, fast.

        Args:
            common_attn_metadata: the batch.
            draft_index: which of the draft tokens, from 0.

        Returns:
            What `build` makes of it, without a common prefix and with `fast_build`.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return self.build(
            common_prefix_len=0, common_attn_metadata=common_attn_metadata, fast_build=True
        )

    def use_cascade_attention(self, *args: object, **kwargs: object) -> bool:  # noqa: ARG002  (a subclass may read them)
        """Say whether a common prefix is attended to apart: no.

        Args:
            args: what a runner knows of the batch.
            kwargs: likewise.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return False


@dataclass
class AttentionGroup:
    """The layers of one KV cache group that share a backend.

    Attributes:
        backend: the class of the backend.
        metadata_builders: one for each micro-batch, so that builders with persistent buffers, over
            which a CUDA graph is captured, do not disturb each other.
        layer_names: the layers.
        kv_cache_spec: what each of them keeps in the cache.

    Example:
        >>> class Backend:
        ...     @staticmethod
        ...     def get_builder_cls():
        ...         return lambda spec, layer_names, config, device: f"builds for {layer_names}"
        >>> group = AttentionGroup.create_with_metadata_builders(
        ...     Backend, ["layers.0.attn"], None, None, "cpu", num_metadata_builders=2
        ... )
        >>> group.get_metadata_builder(1)
        "builds for ['layers.0.attn']"

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    backend: Any
    metadata_builders: list[Any]
    layer_names: list[str]
    kv_cache_spec: Any

    @staticmethod
    def create_with_metadata_builders(
        backend: Any,  # noqa: ANN401  (an engine's own backend serves too)
        layer_names: list[str],
        kv_cache_spec: Any,  # noqa: ANN401  (likewise)
        vllm_config: Any,  # noqa: ANN401  (likewise)
        device: Any,  # noqa: ANN401  (whatever the builders take for a device)
        num_metadata_builders: int = 1,
    ) -> "AttentionGroup":
        """Make a group and its builders.

        Args:
            backend: the class of the backend; it names the builders' class.
            layer_names: the layers.
            kv_cache_spec: what each of them keeps in the cache.
            vllm_config: the engine's configuration.
            device: where the metadata's tensors are.
            num_metadata_builders: how many builders to make.

        Returns:
            The group.

        Raises:
            TypeError: the number is no int.
            ValueError: it is below 1.
            AttributeError: a backend without `get_builder_cls`.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        count = check_int("num_metadata_builders", num_metadata_builders, maximum=None)
        builder_cls = backend.get_builder_cls()
        builders = [
            builder_cls(kv_cache_spec, layer_names, vllm_config, device) for _ in range(count)
        ]
        return AttentionGroup(backend, builders, layer_names, kv_cache_spec)

    def get_metadata_builder(self, ubatch_id: int = 0) -> Any:  # noqa: ANN401  (an engine's own)
        """Return the builder of a micro-batch.

        Args:
            ubatch_id: the micro-batch, from 0.

        Raises:
            TypeError: not an int.
            IndexError: there is no builder of that number.

        Example:
            See the class.

        Source: the definition is kvtwin's own; the name is vLLM's.
        """
        return self.metadata_builders[
            check_index("ubatch_id", ubatch_id, len(self.metadata_builders))
        ]
