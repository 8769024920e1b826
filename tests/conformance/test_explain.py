"""`--explain FUNCTION`: the description of a function, its checks and coverage goals."""

from __future__ import annotations

import re
import sys

import pytest

import reference
from conformance.__main__ import arguments_for_pytest
from conformance.plugin.explain import entries, explain
from conformance.targets.implementations import NAMES

pytest_plugins = ["pytester"]


def test_a_function_is_explained() -> None:
    """Signature, docstring, laws, checks, invalid inputs, coverage goals, and their places."""
    lines = explain("create_ubatch_slices")
    assert "create_ubatch_slices(" == lines[0]
    assert "    num_scheduled_tokens: IntArray," in lines
    doc = str(reference.create_ubatch_slices.__doc__).splitlines()[0]
    assert f"    {doc}" in lines
    text = "\n".join(lines)
    for part in (
        "  split_partitions          The parts together read and write what the",
        "  same answer    create_ubatch_slices answers valid calls as reference does.",
        "  a split point is 0                          ValueError naming split_points\n",
        "\n  a request cut at both ends\n",
        "conformance/test_ubatch_slices.py\n",
        "conformance/strategies/ubatch.py, create_ubatch_slices_calls",
        "conformance/invalid_inputs/ubatch.py",
    ):
        assert part in text, part
    assert "naming num_scheduled_tokens, in checked mode" in " ".join(text.split())


def test_everything_that_is_checked_or_public_is_explained() -> None:
    """Functions, methods, classes, constants and the stateful test can all be explained."""
    for name in [*entries(), *reference.__all__]:
        lines = explain(name)
        assert lines[0].startswith(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("compute_slotmapping", "compute_slot_mapping"),
        ("Unpadded", "CommonAttentionMetadata.unpadded"),
        ("blocktables", "BlockTables"),
    ],
)
def test_an_unknown_name_is_reported_with_similar_names(name: str, near: str) -> None:
    """An unknown name is a one-line error with similar names."""
    with pytest.raises(ValueError, match=f"function '{name}' is unknown; see --list .*") as raised:
        explain(name)
    assert near in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_list_has_each_name_and_whether_it_is_offered(pytester: pytest.Pytester) -> None:
    """`--list` has a line for each name, in a run from any folder; no module is a usage error."""
    pytester.makepyfile(mine="def count(metadata): ...")
    pytester.makepyfile(
        adapter="""
        from conformance.adapters import Adapter
        class ADAPTER(Adapter):
            names = {"split_decodes_and_prefills": "count"}
        """
    )

    def run(*options: str) -> pytest.RunResult:
        given = arguments_for_pytest(["--list", "--adapter", "adapter.py", *options])
        return pytester.run(sys.executable, "-m", "pytest", *given)

    result = run("--impl", "mine.py")
    assert pytest.ExitCode.OK == result.ret
    head, titles, *lines = result.outlines
    assert f"offers 1 of {len(NAMES)} names" in head
    assert ["function", "mine", "definition"] == titles.split()
    assert list(NAMES) == [line.split()[0] for line in lines]
    summary = str(reference.split_decodes_and_prefills.__doc__).splitlines()[0]
    [offered] = [line for line in lines if "not offered" not in line]
    assert ["split_decodes_and_prefills", "offered", summary] == re.split(" {2,}", offered)
    result = run("--impl", "nowhere")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --impl 'nowhere' cannot be imported: *"])
