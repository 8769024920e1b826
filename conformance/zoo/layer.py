"""One layer of a model, as far as a KV cache sees it."""

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
        name: What it is: "conv" or "ssm".
        shape: Of one request's.
        divided: The axis that tensor parallelism divides.
        dtype: By name; None: the model's.
    """

    name: str
    shape: tuple[int, ...]
    divided: int
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer that reads or writes a KV cache, or an attention layer that does not need one.

    Attributes:
        name: Of the module at the hub; where an engine keeps the attention operator in a module
            within, with `.attn` after it. A model's pattern of layers has `{}` for the number.
        kind: "full", "sliding_window", "chunked_local", "latent" (MLA), "cross", "encoder_only" or
            "mamba" (all layers of states).
        backend: What computes it, by the engine's name for it.
        num_query_heads: Query heads; of Mamba layers 0, as the next two.
        num_kv_heads: Key/value heads; 1 for a latent.
        head_size: Elements of a key, of a value, or of the latent with its rotary part.
        scale: What scores are multiplied by before the softmax.
        sliding_window: Keys that a query sees, itself among them; None: all.
        attention_chunk_size: Tokens of a chunk of chunked local attention; None: no chunks.
        logits_soft_cap: The bound of the scores; None: none.
        has_sinks: Whether each head has a learned score that attends to nothing.
        kv_sharing_target: The layer whose cache this one reads; None: it has one of its own.
        dtype: Of the cache, by name, where it has a format of its own; None: the model's.
        cache_dtype_str: The name of such a format.
        fp8_format: The format that its cache has in 8 bits, by name; None: plain float8s.
        mamba_type: The kind of states; None for attention.
        states: Of Mamba layers.
        state_heads: Of Mamba layers: heads, groups or channels that tensor parallelism divides.
        num_speculative_blocks: Of Mamba layers: more blocks of a request, for draft tokens.
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

        Query heads are divided, and KV heads as far as there are enough: then each is on several
        ranks. A latent is whole on each rank. States are divided by heads.

        Raises:
            ValueError: A number of heads that does not divide.

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
        """Return the KV heads of each rank: its share, or one that other ranks have too."""
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
