import dataclasses
from collections.abc import Callable
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast

HEADS = {"block_size": 4, "num_kv_heads": 5, "head_size": 6, "dtype": torch.float16}
FULL = fast.FullAttentionSpec(**HEADS)
ENCODER = fast.EncoderOnlyAttentionSpec(**HEADS)
MAMBA = fast.MambaSpec(16, ((3, 5), (), (2,)), (torch.bfloat16, torch.float16, torch.float32), 480)
DTYPES = [
    *(torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.uint8),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


class Backend:
    """A backend whose shape is (K/V, blocks, tokens, heads, head size), in the order given."""

    def __init__(self, order: Any = None) -> None:  # noqa: ANN401  (wrong ones too)
        self.order = order
        self.asked: list[tuple[int, ...]] = []

    def get_kv_cache_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the logical shape."""
        self.asked.append((num_blocks, block_size, num_kv_heads, head_size))
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    def get_kv_cache_stride_order(self) -> tuple[int, ...]:
        """Return the order, where there is one."""
        if self.order is None:
            raise NotImplementedError
        order: tuple[int, ...] = self.order
        return order


def shaped(*shape: object) -> SimpleNamespace:
    """Make a backend of one shape and no stride order."""
    return SimpleNamespace(get_kv_cache_shape=lambda *_: shape)


def make_config(
    *groups: tuple[list[str], object], tensors: list[tuple[int, list[str]]] | None = None
) -> fast.KVCacheConfig:
    """Make a KV cache of groups and tensors."""
    return fast.KVCacheConfig(
        num_blocks=99,
        kv_cache_tensors=[fast.KVCacheTensor(*tensor) for tensor in tensors or []],
        kv_cache_groups=[fast.KVCacheGroupSpec(*group) for group in groups],
    )


def view(spec: object, num_bytes: int, backend: object, **options: object) -> Any:  # noqa: ANN401
    """Return the view of one layer, or of several Mamba states."""
    return fast._reshape_kv_cache(
        make_config((["a"], spec)), {"a": make_raw(num_bytes)}, {"a": backend}, **options
    )["a"]


def make_raw(num_bytes: int) -> torch.Tensor:
    """Make a raw tensor."""
    return torch.zeros(num_bytes, dtype=torch.int8)


def place_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return what tells where a tensor lies: its storage, its first byte there and its device."""
    first = tensor.storage_offset() * tensor.dtype.itemsize
    return tensor.untyped_storage().data_ptr(), first, tensor.get_device()


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((1, 3, 0, 2, 4), (24, 240, 6, 48, 1)),
        (None, (360, 120, 30, 6, 1)),
        ([0, 1, 2, 3, 4], (360, 120, 30, 6, 1)),
        ((1, 2, 0, 3, 4), (30, 240, 60, 6, 1)),
        ((2, 0, 1, 3, 4), (90, 30, 180, 6, 1)),
    ],
)
def test_strides_of_an_order(order: Any, expected: tuple[int, ...]) -> None:  # noqa: ANN401
    """Memory holds the first dimension of the order outermost; 3-cycles are no inverses."""
    cache = view(FULL, 3 * 480, Backend(order))
    assert (2, 3, 4, 5, 6) == tuple(cache.shape)
    assert expected == cache.stride()
    assert torch.float16 is cache.dtype


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_every_order_walks_memory(order: tuple[int, ...]) -> None:
    """In the physical order, a view's entries lie in memory one behind the other."""
    spec = fast.MLAAttentionSpec(4, 5, 6, torch.float32)
    backend = shaped(3, 4, 5, 6)
    backend.get_kv_cache_stride_order = lambda: tuple(np.int64(d) for d in order)
    cache = view(spec, 3 * 480, backend)
    assert list(range(360)) == [
        offset
        for _, offset in sorted(
            (
                tuple(index[d] for d in order),
                sum(i * s for i, s in zip(index, cache.stride(), strict=True)),
            )
            for index in np.ndindex(*cache.shape)
        )
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_views_share_the_storage(dtype: torch.dtype, num_blocks: int) -> None:
    """A view is the raw tensor's own memory, of every dtype and without blocks too."""
    spec = dataclasses.replace(FULL, dtype=dtype)
    raw = make_raw(num_blocks * spec.page_size_bytes)
    cache = fast._reshape_kv_cache(
        make_config((["a"], spec)), {"a": raw}, {"a": Backend((1, 3, 0, 2, 4))}
    )["a"]
    assert (2, num_blocks, 4, 5, 6) == tuple(cache.shape)
    assert dtype is cache.dtype
    assert place_of(raw) == place_of(cache)
    assert num_blocks * 240 == cache.numel()
    raw[:] = 0x38
    assert (cache.reshape(-1).view(torch.uint8) == 0x38).all()


def test_views_of_a_part_of_a_storage() -> None:
    """A raw tensor may begin inside its storage; a write through the view stays in its own."""
    pool = make_raw(3 * 480)
    raws = {"a": pool[:480], "b": pool[480:1440]}
    views = fast._reshape_kv_cache(
        make_config((["a", "b"], FULL)), raws, dict.fromkeys("ab", Backend())
    )
    assert place_of(raws["b"]) == place_of(views["b"])
    views["b"].fill_(1.5)
    assert not raws["a"].any()
    assert (raws["b"].view(torch.float16) == 1.5).all()


def test_refuses_misaligned_memory() -> None:
    """A raw tensor begins at a whole number of its dtype, in memory and in its storage."""
    config = make_config((["a"], FULL))
    with pytest.raises(ValueError, match=r"^kv_cache_raw_tensors\['a'\] is not aligned for float"):
        fast._reshape_kv_cache(config, {"a": make_raw(481)[1:]}, {"a": Backend()})
    odd = torch.from_numpy(np.zeros(481, np.int8)[1:])
    with pytest.raises(ValueError, match=r"is not aligned for float16, expected"):
        fast._reshape_kv_cache(config, {"a": odd}, {"a": Backend()})


@pytest.mark.parametrize("raw", [make_raw(9)[::3][:0], make_raw(9)[1:1]])
def test_views_of_no_bytes(raw: torch.Tensor) -> None:
    """A tensor of no bytes may lie anywhere, with any stride."""
    cache = fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend()})["a"]
    assert (2, 0, 4, 5, 6) == tuple(cache.shape)


def test_views_on_another_device() -> None:
    """Views are where the raw tensors are."""
    raws = {"a": torch.zeros(480, dtype=torch.int8, device="meta")}
    cache = fast._reshape_kv_cache(make_config((["a"], FULL)), raws, {"a": Backend()})["a"]
    assert (torch.device("meta"), (2, 1, 4, 5, 6)) == (cache.device, tuple(cache.shape))


def test_order_of_groups_and_layers() -> None:
    """Views come in the order of groups and their layers; other layers' tensors are ignored."""
    config = make_config((["c", "a"], FULL), (["e"], ENCODER), (["b"], FULL))
    raws = {name: make_raw(480) for name in "abcex"}
    views = fast._reshape_kv_cache(config, raws, dict.fromkeys("abc", Backend()))
    assert ["c", "a", "b"] == list(views)


def test_backend_classes_and_layouts_of_mla() -> None:
    """A backend may be a class; the cache's own layout is told to it where there is one."""

    class Latents:
        @staticmethod
        def get_kv_cache_shape(
            num_blocks: int, block_size: int, _: int, head_size: int, cache_dtype_str: str = "auto"
        ) -> tuple[int, ...]:
            size = 656 if cache_dtype_str == "fp8_ds_mla" else head_size
            return num_blocks, block_size, size

    packed = fast.MLAAttentionSpec(4, 1, 6, torch.uint8, cache_dtype_str="fp8_ds_mla")
    assert (2, 4, 656) == tuple(view(packed, 2 * 4 * 656, Latents).shape)
    plain = fast.MLAAttentionSpec(4, 1, 6, torch.bfloat16)
    assert (2, 4, 6) == tuple(view(plain, 2 * 48, Latents).shape)


def test_stride_order_that_is_not_there() -> None:
    """Without the method, or with None in its place, the order is the identity."""
    backend = shaped(2, 3, 4, 5, 6)
    assert (360, 120, 30, 6, 1) == view(FULL, 3 * 480, backend).stride()
    backend.get_kv_cache_stride_order = None
    assert (360, 120, 30, 6, 1) == view(FULL, 3 * 480, backend).stride()

    def fails() -> None:
        raise AttributeError("from inside")

    backend.get_kv_cache_stride_order = fails
    with pytest.raises(AttributeError, match="from inside"):
        view(FULL, 3 * 480, backend)


@pytest.mark.parametrize(
    ("order", "error"),
    [
        ((0, 1, 2, 3), ValueError),
        ((0, 1, 2, 3, 4, 5), ValueError),
        ((0, 1, 2, 3, 3), ValueError),
        ((-1, 0, 1, 2, 3), ValueError),
        ((1, 2, 3, 4, 5), ValueError),
        ((0, True, 2, 3, 4), TypeError),
        ((0, 1.0, 2, 3, 4), TypeError),
        ("01234", TypeError),
        (5, TypeError),
        (range(5), TypeError),
    ],
)
def test_refuses_orders(order: object, error: type[Exception]) -> None:
    """A stride order is a permutation of the dimensions."""
    with pytest.raises(error, match=r"^attn_backends\['a'\]\.get_kv_cache_stride_order\(\)"):
        view(FULL, 480, Backend(order))


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ([2, 3, 4, 5, 7], ValueError, "1680 bytes, but kv_cache_raw_tensors.* has 1440"),
        ([2, 0, 4, 5, 6], ValueError, " 0 bytes, but kv_cache_raw_tensors.* has 1440"),
        ([-2, -3, 4, 5, 6], ValueError, r"get_kv_cache_shape\(\)\[0\] is -2, expected at least 0"),
        ([2, 3.0, 4, 5, 6], TypeError, r"get_kv_cache_shape\(\)\[1\] must be an int"),
        (720, TypeError, r"get_kv_cache_shape\(\) must be a tuple or list"),
    ],
)
def test_refuses_shapes(shape: object, error: type[Exception], message: str) -> None:
    """A backend's shape is ints that take the raw tensor's bytes."""
    backend = SimpleNamespace(get_kv_cache_shape=lambda *_: shape)
    with pytest.raises(error, match=f"attn_backends.*{message}"):
        view(FULL, 3 * 480, backend)


def test_refuses_partial_pages() -> None:
    """Raw bytes are whole pages."""
    with pytest.raises(
        ValueError, match=r"^kv_cache_raw_tensors\['a'\] has 481 bytes, expected a multiple of i"
    ):
        view(FULL, 481, Backend())
    with pytest.raises(
        ValueError, match=r"479 bytes, expected a multiple of its page_size_bytes 480"
    ):
        view(MAMBA, 479, Backend())


@pytest.mark.parametrize(
    ("raw", "error", "message"),
    [
        (torch.zeros(480, dtype=torch.uint8), TypeError, "must be int8, got uint8"),
        (np.zeros(480, np.int8), TypeError, "must be a torch tensor, got ndarray"),
        (None, TypeError, "must be an array, got NoneType"),
        (make_raw(480).view(2, 240), ValueError, r"must have 1 dimension, got shape \(2, 240\)"),
        (make_raw(960)[::2], ValueError, "must be contiguous, got stride 2"),
    ],
)
def test_refuses_raw_tensors(raw: object, error: type[Exception], message: str) -> None:
    """A raw tensor is bytes, one behind the other."""
    with pytest.raises(error, match=rf"kv_cache_raw_tensors\['a'\] {message}"):
        fast._reshape_kv_cache(make_config((["a"], FULL)), {"a": raw}, {"a": Backend()})


def test_refuses_missing_layers() -> None:
    """Every layer has a raw tensor and, but for Mamba, a backend."""
    config = make_config((["a"], FULL))
    with pytest.raises(KeyError, match="kv_cache_raw_tensors lacks layer 'a'"):
        fast._reshape_kv_cache(config, {}, {"a": Backend()})
    with pytest.raises(KeyError, match="attn_backends lacks layer 'a'"):
        fast._reshape_kv_cache(config, {"a": make_raw(480)}, {})
    with pytest.raises(TypeError, match="attn_backends must be a dict"):
        fast._reshape_kv_cache(config, {"a": make_raw(480)}, None)
    with pytest.raises(TypeError, match="kv_cache_raw_tensors must be a dict"):
        fast._reshape_kv_cache(config, None, {})
    with pytest.raises(ValueError, match=r"^kv_cache_groups\[1\]\.layer_names\[0\] is 'a', a lay"):
        fast._reshape_kv_cache(make_config((["a"], FULL), (["a"], FULL)), {}, {})


def test_refuses_other_kinds() -> None:
    """A spec that is neither attention nor Mamba has no view."""
    own = type("KVCacheSpec", (SimpleNamespace,), {})(block_size=4, page_size_bytes=4)
    with pytest.raises(NotImplementedError, match=r"^layer 'a' has a spec of class KVCacheSpec, "):
        view(own, 4, Backend())


def test_one_page_over_one_raw_tensor() -> None:
    """Layers over one raw tensor have one page size, over groups too; other tensors don't care."""
    small = dataclasses.replace(FULL, head_size=3)
    config = make_config((["a"], FULL), (["b"], small))
    backends = {"a": Backend(), "b": Backend()}
    raw = make_raw(480)
    with pytest.raises(ValueError, match=r"^page_size_bytes of layer 'b' is 240, but that of 'a'"):
        fast._reshape_kv_cache(config, {"a": raw, "b": raw}, backends)
    fast._reshape_kv_cache(config, {"a": raw, "b": raw[:]}, backends)


@pytest.mark.parametrize(("size", "blocks"), [(4, 3), (2, 6), (1, 12), (np.int64(2), 6)])
def test_kernel_blocks_split_the_specs(size: int, blocks: int) -> None:
    """The backend is asked for blocks of the kernels' size."""
    backend = Backend()
    cache = view(FULL, 3 * 480, backend, kernel_block_sizes=[size])
    assert [(blocks, 12 // blocks, 5, 6)] == backend.asked
    assert (2, blocks, 12 // blocks, 5, 6) == tuple(cache.shape)


def test_kernel_blocks_skip_encoder_only_groups() -> None:
    """Groups that keep no cache have no entry; a Mamba group's is not used."""
    config = make_config((["e"], ENCODER), (["m"], MAMBA), (["a"], FULL))
    raws = {name: make_raw(960) for name in "am"}
    views = fast._reshape_kv_cache(config, raws, {"a": Backend()}, [7, 2])
    assert (2, 4, 2, 5, 6) == tuple(views["a"].shape)
    assert (2, 3, 5) == tuple(views["m"][0].shape)
    for sizes in ([4, 7, 2], [2], []):
        with pytest.raises(ValueError, match=r"kernel_block_sizes has . entries, expected 2"):
            fast._reshape_kv_cache(config, raws, {"a": Backend()}, sizes)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ([3], ValueError, "kernel_block_sizes has 3 for layer 'a', expected a divisor of its"),
        ([8], ValueError, "kernel_block_sizes has 8 for layer 'a', expected a divisor of its"),
        ([0], ValueError, r"kernel_block_sizes\[0\] is 0, expected at least 1"),
        ([True], TypeError, r"kernel_block_sizes\[0\] must be an int"),
        ((4,), TypeError, "kernel_block_sizes must be a list"),
        (4, TypeError, "kernel_block_sizes must be a list"),
    ],
)
def test_refuses_kernel_block_sizes(sizes: object, error: type[Exception], message: str) -> None:
    """Kernel block sizes divide the spec's."""
    with pytest.raises(error, match=message):
        view(FULL, 480, Backend(), kernel_block_sizes=sizes)


def test_uniform_groups_take_each_layers_own_spec() -> None:
    """A layer without one takes that of the first of its group over the same raw tensor."""
    wide, narrow = FULL, dataclasses.replace(FULL, head_size=3)
    uniform = fast.UniformTypeKVCacheSpecs(4, {"n": narrow, "a": wide, "unused": wide})
    raws = {"a": make_raw(960), "n": make_raw(960)}
    raws["s"], raws["t"] = raws["n"], raws["a"]
    config = make_config((["s", "a", "n", "t"], uniform))
    views = fast._reshape_kv_cache(config, raws, dict.fromkeys("sant", Backend()))
    assert ["s", "a", "n", "t"] == list(views)
    assert [3, 6, 3, 6] == [cache.shape[-1] for cache in views.values()]
    assert place_of(views["s"]) == place_of(views["n"])
    with pytest.raises(KeyError, match="kv_cache_specs lacks layer 's'"):
        fast._reshape_kv_cache(config, raws | {"s": raws["n"][:]}, dict.fromkeys("sant", Backend()))


def test_uniform_groups_share_within_a_group_only() -> None:
    """A layer of another group over the same raw tensor lends no spec."""
    uniform = fast.UniformTypeKVCacheSpecs(4, {"a": FULL})
    raw = make_raw(480)
    config = make_config((["a"], uniform), (["b"], uniform))
    with pytest.raises(KeyError, match="kv_cache_specs lacks layer 'b'"):
        fast._reshape_kv_cache(config, {"a": raw, "b": raw}, dict.fromkeys("ab", Backend()))


def test_mamba_states_lie_in_pages() -> None:
    """Each state has a view over blocks, and the states of a block fill its page in order."""
    raw = make_raw(3 * 480)
    states = fast._reshape_kv_cache(make_config((["m"], MAMBA)), {"m": raw}, {})["m"]
    assert type(states) is list
    assert [(3, 3, 5), (3,), (3, 2)] == [tuple(state.shape) for state in states]
    assert [(240, 5, 1), (240,), (120, 1)] == [state.stride() for state in states]
    assert list(MAMBA.dtypes) == [state.dtype for state in states]
    assert [0, 30, 32] == [place_of(state)[1] for state in states]
    assert {place_of(raw)[0]} == {place_of(state)[0] for state in states}
    for state, (begin, end) in zip(states, [(0, 30), (30, 32), (32, 40)], strict=True):
        raw[:] = 0
        state[1] = 1 / 3  # no byte of it is 0
        assert list(range(480 + begin, 480 + end)) == raw.nonzero().flatten().tolist()


def test_mamba_without_blocks() -> None:
    """States of no blocks are empty."""
    states = view(MAMBA, 0, None)
    assert [(0, 3, 5), (0,), (0, 2)] == [tuple(state.shape) for state in states]


@pytest.mark.parametrize(
    ("shapes", "dtypes", "padded"),
    [
        (((1,), (1,)), (torch.int8, torch.float16), 4),
        (((1,), (1,)), (torch.float16, torch.float32), 8),
        (((1,),), (torch.float32,), 6),
        (((2,), (3,)), (torch.float32, torch.int8), None),
    ],
)
def test_mamba_refuses_misaligned_states(
    shapes: Any,  # noqa: ANN401  (tuples of tuples)
    dtypes: tuple[torch.dtype, ...],
    padded: int | None,
) -> None:
    """A state's numbers lie at multiples of their size, in every page."""
    spec = fast.MambaSpec(16, shapes, dtypes, padded)
    with pytest.raises(
        ValueError, match=r"layer 'a' has state . of .* at byte ., .*expected|pages"
    ):
        view(spec, 2 * spec.page_size_bytes, None)


def test_mamba_states_of_an_engines_own_fit_their_page() -> None:
    """An engine's own spec whose page is too small is refused: states of two blocks would mix."""
    own = type("MambaSpec", (SimpleNamespace,), {})
    spec = own(page_size_bytes=4, shapes=((3,),), dtypes=(torch.float16,), block_size=1)
    with pytest.raises(ValueError, match=r"^state 0 of layer 'a' ends at byte 6, past its page_s"):
        view(spec, 8, None)


def test_pages_are_blocks_beside_mamba() -> None:
    """Beside Mamba layers the block dimension lies outermost, whatever the backend says."""
    config = make_config((["m"], MAMBA), (["a", "b"], FULL))
    raws = dict.fromkeys("mab", make_raw(3 * 480))
    backends = {"a": Backend(), "b": Backend((3, 0, 1, 2, 4))}
    views = fast._reshape_kv_cache(config, raws, backends)
    assert (120, 240, 30, 6, 1) == views["a"].stride()
    assert (24, 240, 6, 48, 1) == views["b"].stride()
    views["a"][:, 1] = 1
    assert (raws["m"].view(3, 480).any(dim=1).tolist()) == [False, True, False]


def test_kernel_blocks_fill_pages_beside_mamba() -> None:
    """The kernel blocks of one block lie in its page."""
    config = make_config((["m"], MAMBA), (["a"], FULL))
    raw = make_raw(3 * 480)
    cache = fast._reshape_kv_cache(config, dict.fromkeys("ma", raw), {"a": Backend()}, [16, 2])["a"]
    assert (60, 120, 30, 6, 1) == cache.stride()
    cache[:, 2:4] = 1
    assert [False, True, False] == raw.view(3, 480).any(dim=1).tolist()


def test_a_mamba_layer_in_any_group_counts() -> None:
    """Mamba inside a uniform group counts too, and no blocks are no hindrance."""
    uniform = fast.UniformTypeKVCacheSpecs(16, {"m": MAMBA})
    config = make_config((["a"], FULL), (["m"], uniform))
    for blocks, expected in ((3, (120, 240, 30, 6, 1)), (0, (120, 240, 30, 6, 1))):
        raws = {name: make_raw(blocks * 480) for name in "am"}
        cache = fast._reshape_kv_cache(config, raws, {"a": Backend()})["a"]
        assert expected == cache.stride()


@pytest.mark.parametrize(
    "shape",
    [
        lambda _: (2, 3, 4, 5, 6),
        lambda blocks: (2, blocks, 4, 5, 6 * blocks),
        lambda blocks: (1,) * blocks,
    ],
)
def test_refuses_no_block_dimension(shape: Callable[[int], tuple[int, ...]]) -> None:
    """Beside Mamba, exactly one dimension grows with one more block."""
    backend = SimpleNamespace(get_kv_cache_shape=lambda num_blocks, *_: shape(num_blocks))
    config = make_config((["m"], MAMBA), (["a"], FULL))
    with pytest.raises(ValueError, match="for one more block, expected one dimension to grow"):
        fast._reshape_kv_cache(config, dict.fromkeys("ma", make_raw(3 * 480)), {"a": backend})
