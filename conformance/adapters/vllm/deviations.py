"""What vLLM does differently on purpose, each with a call that shows it."""

from __future__ import annotations

from typing import Final

from conformance.adapters.deviation import Deviation

DEVIATIONS: Final[tuple[Deviation, ...]] = ()
