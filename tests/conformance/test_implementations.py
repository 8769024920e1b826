"""Implementations under test: loading, selection, several at once, missing names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.cases.store import check_of
from conformance.checks.registry import checked_functions, modules_about
from conformance.generation.profiles import PROFILES
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import choose_targets, default_targets

import conformance
import fast
from conformance.__main__ import arguments_for_pytest
from conformance.adapters.implementations import (
    Implementation,
    load_implementation,
    load_implementations,
)

pytest_plugins = ["pytester"]
HARNESS = Path(conformance.__file__).parent
FILES = ("test_context_parallel.py", "test_sequence_parallel.py", "test_batch_order.py")
LIGHT = ("-q", "--profile", "dev", "--target", "host", "--failures", "scripts")


@pytest.fixture
def run(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a pytester with a module, to start runs from outside the repository."""
    pytester.makepyfile(few="from fast import checks, split_decodes_and_prefills")
    return pytester


def started(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run a few of the package's tests as `python -m conformance` does, in a fresh process."""
    given = [sys.executable, "-m", "pytest", *arguments_for_pytest([*arguments, *LIGHT, *FILES])]
    return pytester.run(*given)


Loader = Callable[[str, str], Implementation]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loader]:
    """Yield a function that writes and loads a file; its module is unloaded afterwards."""
    before = set(sys.modules)

    def load(name: str, source: str) -> Implementation:
        (tmp_path / name).write_text(source)
        return load_implementation(str(tmp_path / name))

    yield load
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere.py", "--impl 'nowhere.py' is not a file"),
        ("no_such", "--impl 'no_such' cannot be imported: ModuleNotFoundError: No module named"),
        ("math", "--impl 'math' offers none of the 82 names of reference and fast, such as "),
    ],
)
def test_what_is_no_implementation_is_refused(text: str, message: str) -> None:
    """A name or a file that is no implementation is a one-line error."""
    with pytest.raises(ValueError, match=message) as refused:
        load_implementation(text)
    assert "\n" not in str(refused.value)


def test_a_file_is_imported_under_its_own_name(loaded: Loader, tmp_path: Path) -> None:
    """Its folder is importable while it is imported, and not afterwards."""
    (tmp_path / "engine_neighbour.py").write_text("LIMIT = 3\n")
    source = "from engine_neighbour import LIMIT\nfrom fast import compute_slot_mapping\n"
    found = loaded("engine_of_a_file.py", source)
    assert ("engine_of_a_file", f"{tmp_path / 'engine_of_a_file.py'}") == (found.name, found.file)
    assert ["compute_slot_mapping"] == found.offered()
    assert str(tmp_path) not in sys.path
    assert found.module is load_implementation(found.file).module


def test_a_file_with_another_module_s_name_is_refused(loaded: Loader) -> None:
    """A file named `fast.py` is not taken for `fast`, nor the other way round."""
    with pytest.raises(ValueError, match="has the same name as another module, fast"):
        loaded("fast.py", "from fast import compute_slot_mapping\n")


def test_the_simulator_is_for_kernels_of_fast(loaded: Loader) -> None:
    """An implementation without anything of `fast` runs on the host alone."""
    foreign = loaded("foreign_engine.py", "def compute_slot_mapping():\n    pass\n")
    assert not {"sim", "native"} & set(default_targets(foreign))
    for name in ("sim", "native"):
        message = f"target '{name}' runs kernels of fast, but foreign_en"
        with pytest.raises(ValueError, match=message):
            choose_targets(name, [foreign])


def test_without_impl_fast_is_under_test() -> None:
    """`fast`, its version and its file are what the header names."""
    [found] = load_implementations([])
    assert fast is found.module
    assert found.describe().startswith(f"fast {found.version}, {fast.__file__}; offers ")


def test_adapters_are_one_or_one_for_each() -> None:
    """Two adapters for one implementation are an error."""
    with pytest.raises(ValueError, match="--adapter is given 2 times"):
        load_implementations(["fast"], ["a", "b"])


def test_several_make_one_table(run: pytest.Pytester) -> None:
    """Each implementation has a column; what one lacks is absent there, and no failure."""
    names = "split_decodes_and_prefills,get_dcp_local_seq_lens"
    arguments = ("--impl", "few.py", "--impl", "fast", "--functions", names)
    result = started(run, *arguments, "-v")
    assert pytest.ExitCode.OK == result.ret
    result.stdout.fnmatch_lines(
        [
            "conformance: few, fast on few:host, fast:host; profile dev; *",
            "under test: few *few.py; offers 1 of * names; *",
            "under test: fast *",
            "functions: split_decodes_and_prefills, get_dcp_local_seq_lens",
            "get_dcp_local_seq_lens *absent *conforms*",
            "split_decodes_and_prefills *conforms*conforms*",
        ]
    )


def test_a_file_that_exits_is_a_one_line_error(loaded: Loader) -> None:
    """`sys.exit` at import is an error, and does not end the run."""
    with pytest.raises(ValueError, match="cannot be imported: SystemExit: not here"):
        loaded("exits_at_once.py", "import sys\nsys.exit('not here')\n")


LENGTHS = """
import sys, warnings
import fast
from fast import checks

def get_dcp_local_seq_lens(*args, **keywords):
    {line}
    return fast.get_dcp_local_seq_lens(*args, **keywords)
"""


def lengths_on(implementation: Implementation) -> None:
    """Run a check of `get_dcp_local_seq_lens` on an implementation."""
    [target] = choose_targets("host", [implementation])
    lengths = check_of("conformance.test_context_parallel:test_get_dcp_local_seq_lens")
    lengths.bind(target, PROFILES["dev"], "minimal", shrink=False)()


def test_a_function_that_exits_fails(loaded: Loader) -> None:
    """A function that exits fails, as with any other exception."""
    found = loaded("exits_later.py", LENGTHS.format(line="sys.exit(0)"))
    with pytest.raises(Mismatch, match="raised SystemExit: 0"):
        lengths_on(found)


def test_a_warning_is_no_answer(loaded: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning of another implementation is ignored; `fast` itself must not warn."""
    lengths_on(loaded("warns.py", LENGTHS.format(line="warnings.warn('it is late')")))
    real = fast.get_dcp_local_seq_lens

    def warns(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401  # as fast's
        warnings.warn("it is late", stacklevel=1)
        return real(*args, **keywords)

    monkeypatch.setattr(fast, "get_dcp_local_seq_lens", warns)
    with pytest.raises(Mismatch, match="raised UserWarning: it is late"):
        lengths_on(load_implementation("fast"))


def test_a_module_names_the_functions_that_it_checks() -> None:
    """A module that does not name a function has no checks of it, and need not be imported."""
    checked = {module: checked_functions([module]) for module in HARNESS.glob("test_*.py")}
    for name in checked_functions():
        others = checked.keys() - set(modules_about([name]))
        assert not [module for module in others if name in checked[module]]


def test_other_modules_are_not_imported(run: pytest.Pytester) -> None:
    """Running a function's checks only imports the modules that name it, and their imports."""
    code = """
import sys, pytest
pytest.main([*sys.argv[1:], "-q"])
print("imported:", *(name for name in sys.modules if name.startswith("conformance.test_")))
"""
    names = ("--functions", "slice_query_start_locs", "--collect-only")
    result = run.run(sys.executable, "-c", code, str(HARNESS), *names)
    imported = {name.removeprefix("conformance.test_") for name in result.outlines[-1].split()[1:]}
    assert {"ubatch"} <= imported <= {"ubatch", "backend", "buffers"}


def test_without_checked_mode_the_header_says_so(run: pytest.Pytester) -> None:
    """An implementation without `checks(enabled)` must always refuse bad values."""
    run.makepyfile(bare="from fast import get_dcp_local_seq_lens")
    names = ("--functions", "get_dcp_local_seq_lens", "--collect-only", "-v")
    line = "  has no checks(enabled): it must always refuse bad values"
    started(run, "--impl", "bare.py", *names).stdout.fnmatch_lines(["under test: bare *", line])
    started(run, "--impl", "few.py", *names).stdout.no_fnmatch_line(line)


def test_a_file_that_hides_a_package_is_named(pytester: pytest.Pytester) -> None:
    """Started in a folder with a `reference.py`, the run names the file that hides the package."""
    pytester.makepyfile(reference="")
    root = str(Path(fast.__file__).parents[1])
    pytester.syspathinsert(root)  # after the working directory, which `-m` puts first
    pytester._monkeypatch.setenv("PYTHONPATH", root)
    result = pytester.run(sys.executable, "-m", "conformance", "-q")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    [line] = result.stderr.lines
    assert line.startswith(f"python -m conformance: {pytester.path / 'reference.py'} hides the")
