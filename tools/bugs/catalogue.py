"""Read the catalogue of bugs, `tests/conformance/bugs`: a file of patches for each module.

An entry of `fast/_native/slots.toml`, which patches `fast/_native/slots.py`:

    [compute_slot_mapping."slots in int32"]         # the function that is wrong, and how
    why = "Right until the cache has 2**31 slots."  # what happens, or why it could go unnoticed
    within = "fill_slots"                           # where `old` occurs once; default: the file
    old = "return torch.from_numpy(slots)"          # what is replaced; a list for several places
    new = "return torch.from_numpy(slots).int()"    # what replaces it
    caught_by = "same answer"                       # a kind of check, or a law; this is the default
    target = "host"                                 # the default; for kernels it is `sim`; `native`
                                                    # for bugs that the simulator cannot show
    message = "slots"                               # a pattern that the failure matches; optional
    missed_by = { native = "Numba wraps it." }      # the other targets that miss it, and why
"""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tools.bugs.planting import edit, planted

FOLDER: Final = Path(__file__).parents[2] / "tests" / "conformance" / "bugs"
"""The catalogue, which is not installed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bug:
    """A patch of a module.

    Attributes:
        function: The function whose checks must catch it, as the checks name it.
        what: What is wrong, in a few words.
        why: What happens, or why it could go unnoticed.
        module: The module that is patched.
        old: The piece of its source that is replaced; a list for several.
        new: What replaces it.
        within: The function or class in which each piece occurs once; empty: the module.
        target: The target on which the checks run.
        caught_by: The kind of check that must catch it, or the name of the law.
        message: A pattern that a line of the failure must match.
        missed_by: The targets that do not catch it, and why, where kernels run on several.
    """

    function: str
    what: str
    why: str
    module: str
    old: str | list[str]
    new: str | list[str]
    within: str = ""
    target: str = "host"
    caught_by: str = "same answer"
    message: str = ""
    missed_by: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its test."""
        return f"{self.function}: {self.what}"

    def planted(self) -> AbstractContextManager[None]:
        """Return a block in which the module has the bug.

        Raises:
            ValueError: A piece does not occur exactly once.
        """
        module = importlib.import_module(self.module)
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        olds, news = ([s] if isinstance(s, str) else s for s in (self.old, self.new))
        for old, new in zip(olds, news, strict=True):
            source = edit(source, old, new, self.within)
        return planted(module, source)


def read_catalogue(folder: Path = FOLDER) -> Iterator[Bug]:
    """Yield the bugs of a catalogue.

    Args:
        folder: Its folder.

    Raises:
        ValueError: An entry lacks a field, or has an unknown one.
    """
    for path in sorted(folder.rglob("*.toml")):
        parts = path.relative_to(folder).with_suffix("").parts
        target = "sim" if parts[:2] == ("fast", "kernels") else "host"
        common = {"module": ".".join(parts), "target": target}
        for function, bugs in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for what, fields in bugs.items():
                try:
                    yield Bug(function=function, what=what, **{**common, **fields})
                except TypeError as error:
                    raise ValueError(f"{path}: {function}: {what}: {error}") from error
