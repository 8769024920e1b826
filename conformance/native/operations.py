"""Translates the instructions that only compute: arithmetic, comparisons, conversions and moves.

PTX defines two operations that LLVM leaves undefined, so their code handles these cases: shifts by
the width or more, and divisions by 0 or with overflow (with any result).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from llvmlite import ir

from conformance.native.ptx import BITS
from conformance.native.state import I32, constant

Result: TypeAlias = tuple[Any, bool]
"""A value, and whether it is sign-extended in a wider register."""
Compute: TypeAlias = Callable[[Any, Sequence[Any], "re.Match[str]"], Any]
"""Takes an IR builder, the values of the operands, and the match of the opcode."""

TYPE: Final = r"(?P<sign>[bus])(?P<bits>16|32|64)"
_CONDITIONS: Final = {
    "eq": "==",
    "ne": "!=",
    **dict.fromkeys(("lt", "lo"), "<"),
    **dict.fromkeys(("le", "ls"), "<="),
    **dict.fromkeys(("gt", "hi"), ">"),
    **dict.fromkeys(("ge", "hs"), ">="),
}

_COMPUTE: Final[list[tuple[re.Pattern[str], Compute]]] = []


def find_operation(opcode: str) -> tuple[re.Match[str], Compute] | None:
    """Return the match and the translator of an opcode; None if it is not of this module."""
    for pattern, compute in _COMPUTE:
        if found := pattern.fullmatch(opcode):
            return found, compute
    return None


def operand_bits(found: "re.Match[str]") -> int:
    groups = found.groupdict()
    return BITS[groups["from_type"]] if "from_type" in groups else int(groups.get("bits") or 1)


def _operation(pattern: str) -> Callable[[Compute], Compute]:
    """Register a function as the translator of all opcodes that match a pattern."""

    def declare(compute: Compute) -> Compute:
        _COMPUTE.append((re.compile(pattern), compute))
        return compute

    return declare


def intrinsic(builder: Any, name: str, *values: Any) -> Any:
    kind = values[0].type
    function = builder.module.declare_intrinsic(
        f"llvm.{name}", [kind], ir.FunctionType(kind, [each.type for each in values])
    )
    return builder.call(function, values)


@_operation(rf"(?P<name>add|sub|and|or|xor)\.{TYPE}")
@_operation(r"(?P<name>and|or|xor)\.pred")
def _combine(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    name = found["name"]
    combine = getattr(builder, name + "_" * (name in {"and", "or"}))
    return combine(*values)


@_operation(rf"mul\.(?P<part>lo|hi|wide)\.{TYPE}")
@_operation(rf"mad\.(?P<part>lo|hi|wide)\.{TYPE}")
def multiply(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    left, right, *addend = values
    if found["part"] == "lo":
        product = builder.mul(left, right)
    else:
        wide = ir.IntType(2 * left.type.width)
        extend = builder.sext if found["sign"] == "s" else builder.zext
        product = builder.mul(extend(left, wide), extend(right, wide))
        if found["part"] == "hi":
            high = builder.lshr(product, constant(left.type.width, wide))
            product = builder.trunc(high, left.type)
    return builder.add(product, addend[0]) if addend else product


@_operation(rf"(?P<name>div|rem)\.{TYPE}")
def _divide(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    left, right = values
    kind, bits = left.type, left.type.width
    is_signed = found["sign"] == "s"
    is_undefined = builder.icmp_unsigned("==", right, constant(0, kind))
    if is_signed:
        is_least = builder.icmp_unsigned("==", left, constant(1 << bits - 1, kind))
        is_over = builder.icmp_unsigned("==", right, constant(-1, kind))
        is_undefined = builder.or_(is_undefined, builder.and_(is_least, is_over))
    divisor = builder.select(is_undefined, constant(1, kind), right)
    is_quotient = found["name"] == "div"
    divide = {
        (True, True): builder.sdiv,
        (True, False): builder.udiv,
        (False, True): builder.srem,
        (False, False): builder.urem,
    }[is_quotient, is_signed]
    other = constant(-1, kind) if is_quotient else left
    return builder.select(is_undefined, other, divide(left, divisor))


@_operation(rf"(?P<name>min|max)\.{TYPE}")
def _choose(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    return intrinsic(builder, f"{found['sign']}{found['name']}", *values)


@_operation(rf"(?P<name>shl|shr)\.{TYPE}")
def _shift(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    value, amount = values
    kind, bits = value.type, value.type.width
    is_over = builder.icmp_unsigned(">=", amount, constant(bits, I32))
    most = builder.select(is_over, constant(bits - 1, I32), amount)
    by = most
    if bits != I32.width:
        by = (builder.zext if bits > I32.width else builder.trunc)(most, kind)
    if found["name"] == "shr" and found["sign"] == "s":
        return builder.ashr(value, by)
    shifted = (builder.shl if found["name"] == "shl" else builder.lshr)(value, by)
    return builder.select(is_over, constant(0, kind), shifted)


@_operation(r"shf\.(?P<side>[lr])\.wrap\.b(?P<bits>32)")
def _shift_both(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    low, high, amount = values
    return intrinsic(builder, f"fsh{found['side']}", high, low, amount)


@_operation(rf"(?P<name>not|neg|abs|popc)\.{TYPE}")
@_operation(r"(?P<name>not)\.pred")
def _change(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    [value] = values
    if found["name"] == "popc":
        count = intrinsic(builder, "ctpop", value)
        return count if count.type == I32 else builder.trunc(count, I32)
    if found["name"] == "abs":
        negative = builder.icmp_signed("<", value, constant(0, value.type))
        return builder.select(negative, builder.neg(value), value)
    return builder.neg(value) if found["name"] == "neg" else builder.not_(value)


@_operation(rf"setp\.(?P<condition>{'|'.join(_CONDITIONS)})\.{TYPE}")
def _compare(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    compare = builder.icmp_signed if found["sign"] == "s" else builder.icmp_unsigned
    return compare(_CONDITIONS[found["condition"]], *values)


@_operation(rf"selp\.{TYPE}")
def _select(builder: Any, values: Sequence[Any], _found: "re.Match[str]") -> Any:
    chosen, other, condition = values
    return builder.select(condition, chosen, other)


@_operation(rf"mov\.{TYPE}")
@_operation(r"mov\.pred")
@_operation(r"cvt\.(?P<to_type>[us](?:8|16|32|64))\.(?P<from_type>[us](?:8|16|32|64))")
def _move(builder: Any, values: Sequence[Any], found: "re.Match[str]") -> Any:
    [value] = values
    groups = found.groupdict()
    if "to_type" not in groups:
        return value
    kind = ir.IntType(BITS[groups["to_type"]])
    if kind.width < value.type.width:
        return builder.trunc(value, kind)
    if kind.width == value.type.width:
        return value
    return (builder.sext if groups["from_type"][0] == "s" else builder.zext)(value, kind)
