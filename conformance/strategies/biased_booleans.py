"""Booleans with other odds than one in two, shared by the strategies."""

from __future__ import annotations

from conformance.strategies import cached as st

RARELY = st.sampled_from((False, False, False, True))
"""True one time in four; what is simpler is False."""

SOMETIMES = st.sampled_from((False, False, True))
"""True one time in three; what is simpler is False."""

MOSTLY = st.sampled_from((True, True, False))
"""True two times in three; what is simpler is True."""
