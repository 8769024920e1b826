from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import fast
from fast import kv_cache_spec


@pytest.mark.parametrize(
    "dtype", ["float16", np.float16, np.dtype("float16"), ml_dtypes.bfloat16, float, None, 2]
)
def test_dtypes_are_torchs(dtype: object) -> None:
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        fast.AttentionSpec(16, 3, 10, dtype)
    with pytest.raises(TypeError, match=r"dtypes\[0\] must be a supported dtype"):
        fast.MambaSpec(16, ((1,),), (dtype,))


def test_an_engines_uniform_spec_of_none() -> None:
    own = type("UniformTypeKVCacheSpecs", (SimpleNamespace,), {})(kv_cache_specs={})
    with pytest.raises(ValueError, match="kv_cache_specs is empty"):
        kv_cache_spec.find_inner_specs(own)
