"""Compares error messages: the whole text for `fast`, the element and value for others.

`reference` and `fast` raise the same exceptions with the same text. Another implementation may use
other words. But where `reference` names an element and its value, as in `seq_lens[3] is 5`, every
message must name both: without them a caller cannot find what is wrong.
"""

from __future__ import annotations

import re

from conformance.values.differences import Difference, Verdict

ELEMENT = re.compile(
    r"(?P<element>[A-Za-z_][\w.]*(?:\(\))?(?:\[(?:\d+(?:, \d+)*|'[^']*')\](?:\.\w+)*(?:\(\))?)+)"
    r" (?:is|must be [^,]*, got) (?P<value>-?\d+(?:\.\d+)?(?![\w.]*\d)|'[^']*'|True|False|None)"
)
"""An element of an argument and its value, as `reference` names them."""


def compare_wording(
    expected: BaseException, actual: BaseException, *, is_exact: bool
) -> Difference | None:
    """Return the difference between the messages of two refusals of one call.

    Args:
        expected: The exception of `reference`.
        actual: The exception of the target, of the same class.
        is_exact: Whether the text must be the same. Otherwise the message must name the element
            and the value that `reference`'s message names, if any.

    >>> expected = ValueError("seq_lens[3] is 5, less than its query length 8")
    >>> compare_wording(expected, ValueError("bad length 5: seq_lens[3]"), is_exact=False)
    >>> compare_wording(expected, ValueError("seq_lens[0] is 5"), is_exact=False).line
    'the message = seq_lens[0] is 5, but should be a message with seq_lens[3] and 5'
    """
    expected_text, got = str(expected), str(actual)
    if expected_text == got:
        return None
    if is_exact:
        return Difference(Verdict.WORDING, "the message", None, got, expected_text)
    named = ELEMENT.search(expected_text)
    if named is None:
        return None
    element, value = named["element"], named["value"]
    rest = got.replace(element, "")
    names_value = re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w]|\.\d)", rest)
    if element in got and names_value is not None:
        return None
    should_be = f"a message with {element} and {value}"
    return Difference(Verdict.WORDING, "the message", None, got, should_be)
