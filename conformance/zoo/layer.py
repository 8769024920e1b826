"""One layer of a model: the properties that determine its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

FULL = "full"
SLIDING_WINDOW = "sliding_window"
CHUNKED_LOCAL = "chunked_local"
LATENT = "latent"
CROSS = "cross"
ENCODER_ONLY = "encoder_only"
MAMBA = "mamba"


@dataclass(frozen=True, kw_only=True)
class State:
    """A state of a Mamba layer, or of one like it.

    Attributes:
        name: "conv" or "ssm".
        shape: The shape of one request's state.
        divided: The axis that tensor parallelism divides.
        dtype: The dtype by name; None: the model's.
    """

    name: str
    shape: tuple[int, ...]
    divided: int
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads or writes a KV cache, or an attention layer that does not need one.

    Attributes:
        name: The module's name on the Hugging Face Hub, with `.attn` appended if the engine has the
            attention operator in a submodule. Templates have `{}` for the layer's number.
        kind: "full", "sliding_window", "chunked_local", "latent" (MLA), "cross", "encoder_only" or
            "mamba" (all layers of states).
        backend: The engine's name of the backend that computes it.
        num_query_heads: Query heads; 0 in Mamba layers, as are the next two.
        num_kv_heads: Key/value heads; 1 for a latent.
        head_size: Elements of a key, of a value, or of the latent with its rotary part.
        scale: The factor of the scores before the softmax.
        sliding_window: Keys that a query attends to, its own included; None: all.
        attention_chunk_size: Tokens of a chunk of chunked local attention; None: no chunks.
        logits_soft_cap: The bound of the scores; None: none.
        has_sinks: Whether each head has a learned score that attends to nothing.
        kv_sharing_target: The layer whose cache this one reads; None: it has one of its own.
        dtype: The dtype of the cache, by name; None: the requested one or the model's.
        cache_dtype_str: The packed format of the cache, such as `fp8_ds_mla`; None: not packed.
        fp8_format: The packed format of the cache if it has 8 bits; None: plain float8s.
        mamba_type: The kind of states; None for attention.
        states: The states of a Mamba layer.
        state_heads: The numbers of heads, groups or channels of a Mamba layer that tensor
            parallelism divides.
        num_speculative_blocks: Extra blocks of each request in a Mamba layer, for draft tokens and
            state checkpoints.
    """

    name: str
    kind: str
    backend: str = "FLASH_ATTN"
    num_query_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0
    scale: float = 0.0
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    logits_soft_cap: float | None = None
    has_sinks: bool = False
    kv_sharing_target: str | None = None
    dtype: str | None = None
    cache_dtype_str: str | None = None
    fp8_format: str | None = None
    mamba_type: str | None = None
    states: tuple[State, ...] = ()
    state_heads: tuple[int, ...] = ()
    num_speculative_blocks: int = 0

    @property
    def has_kv_cache(self) -> bool:
        """Whether it has a cache of its own."""
        return self.kind != ENCODER_ONLY and self.kv_sharing_target is None

    def divided(self, tensor_parallel_size: int) -> Layer:
        """Return the part of the layer that each rank of a tensor-parallel group has.

        Query heads are divided, and so are KV heads; if these are fewer than the ranks, several
        ranks have the same one. A latent is whole on each rank. States are divided by heads.

        Raises:
            ValueError: The ranks do not divide a number of heads.

        Example:
            >>> layer = Layer(name="0", kind="full", num_query_heads=32, num_kv_heads=4)
            >>> layer.divided(8).num_query_heads, layer.divided(8).num_kv_heads
            (4, 1)
            >>> layer.divided(3)
            Traceback (most recent call last):
            ValueError: tensor_parallel_size is 3, which does not divide the 32 query heads of 0
        """
        ranks = tensor_parallel_size
        for number in self.state_heads:
            if number % ranks != 0:
                raise ValueError(
                    f"tensor_parallel_size is {ranks}, which does not divide the {number} heads or "
                    f"groups of the states of {self.name}"
                )
        if self.num_query_heads % ranks != 0:
            raise ValueError(
                f"tensor_parallel_size is {ranks}, which does not divide the "
                f"{self.num_query_heads} query heads of {self.name}"
            )
        return replace(
            self,
            num_query_heads=self.num_query_heads // ranks,
            num_kv_heads=self._kv_heads_on(ranks),
            states=tuple(_divided_state(state, ranks) for state in self.states),
        )

    def _kv_heads_on(self, ranks: int) -> int:
        """Return the number of KV heads of each rank; if there are fewer than ranks, 1."""
        heads = self.num_kv_heads
        if self.kind in (LATENT, MAMBA):
            return heads
        if heads % ranks != 0 and ranks % heads != 0:
            raise ValueError(
                f"tensor_parallel_size is {ranks}, and {self.name} has {heads} KV heads: neither "
                "divides the other"
            )
        return max(heads // ranks, 1)


def _divided_state(state: State, ranks: int) -> State:
    """Return a rank's part of a state."""
    lengths = list(state.shape)
    if lengths[state.divided] % ranks != 0:
        raise ValueError(
            f"tensor_parallel_size is {ranks}, which does not divide the {lengths[state.divided]} "
            f"of the {state.name} state"
        )
    lengths[state.divided] //= ranks
    return replace(state, shape=tuple(lengths))
