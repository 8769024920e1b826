"""Line charts, which `chart.html.j2` draws as SVG in the colours of the page's style sheet.

A chart is drawn for a column of about 360 pixels, so that its text can be read on a phone. A page
puts several side by side. The heading and the legend are next to it, in HTML.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 360, 200
"""The size of a chart in pixels."""

TOP, RIGHT, BOTTOM = 12, 22, 40
"""The margins around the lines; the left one is as wide as the labels."""

CHARACTER = 6.4
"""The width of a character of a label."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: What it shows.
        points: Pairs of x and y, in the order of x.
        hints: The tooltip of each point; empty for points without a mark.
        style: The number of its colour and dashes in the style sheet.
        is_stepped: Whether the value stays until the next point.
    """

    name: str
    points: Sequence[tuple[float, float]]
    hints: Sequence[str] = ()
    style: int = 0
    is_stepped: bool = False


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: What it shows, with the unit of y.
        value: The last value in words, shown next to the title.
        lines: Its lines.
        x_name: What x is, with its unit.
        x_ticks: Values of x and their labels.
        description: The chart in a sentence, for people who cannot see it.
        has_zero: Whether the y axis starts at zero.
        level: A value of y that is marked by a horizontal line, and its name.
    """

    title: str
    value: str
    lines: Sequence[Line]
    x_name: str
    x_ticks: Sequence[tuple[float, str]]
    description: str
    has_zero: bool = True
    level: tuple[float, str] | None = None


def ticks_of(low: float, high: float, *, maximum: int = 5, min_step: float = 0.0) -> list[float]:
    """Return round numbers that enclose a range, in equal steps.

    Args:
        low: The smallest value.
        high: The largest value.
        maximum: How many steps there are at most.
        min_step: The smallest step, 1 for counts.

    >>> ticks_of(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    >>> ticks_of(0, 2, min_step=1)
    [0.0, 1.0, 2.0]
    >>> ticks_of(1203, 1208, min_step=1)
    [1203.0, 1204.0, 1205.0, 1206.0, 1207.0, 1208.0]
    """
    span = max(high - low, min_step, abs(high) * 1e-3) or 1.0
    exponent = math.floor(math.log10(span / maximum))
    steps = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    for step in (max(step, min_step) for step in steps):
        first, last = math.floor(low / step), math.ceil(max(high, low + span) / step)
        if last - first <= maximum:
            return [round(float(i * step), 12) for i in range(first, last + 1)]
    raise AssertionError((low, high, maximum, min_step))


def short_number(number: float) -> str:
    """Return a number as the label of an axis.

    >>> [short_number(number) for number in (0, 0.25, 1500, 20000, 20100, 1.5e6, 2e9)]
    ['0', '0.25', '1,500', '20k', '20,100', '1.5M', '2,000M']
    """
    if abs(number) >= 1e6:
        return f"{number / 1e6:,.6g}M"
    if abs(number) >= 1e4 and number % 1000 == 0:
        return f"{number / 1e3:g}k"
    return f"{number:,.10g}"


def time_ticks(seconds: float) -> tuple[str, list[tuple[float, str]]]:
    """Return the unit of a time axis and its ticks.

    >>> time_ticks(1800)
    ('minutes', [(0, '0'), (600, '10'), (1200, '20'), (1800, '30')])
    >>> time_ticks(8 * 3600)[0], [label for _, label in time_ticks(8 * 3600)[1]]
    ('hours', ['0', '2', '4', '6', '8'])
    """
    if seconds < 150:
        unit, size = "seconds", 1
    elif seconds < 150 * 60:
        unit, size = "minutes", 60
    else:
        unit, size = "hours", 3600
    steps = (1, 2, 4, 6, 12, 24, 48) if unit == "hours" else (1, 2, 5, 10, 20, 30)
    found = [step for step in steps if seconds / size / step <= 5]
    step = found[0] if found else math.ceil(seconds / size / 5)
    number = math.floor(seconds / size / step + 1e-6)
    return unit, [(i * step * size, f"{i * step:,}") for i in range(number + 1)]


def arrange_chart(chart: Chart) -> dict[str, Any]:
    """Return the layout of a chart in pixels; `chart.html.j2` draws it as SVG.

    Args:
        chart: The chart, which has at least one point.
    """
    xs = [x for line in chart.lines for x, _ in line.points] + [x for x, _ in chart.x_ticks]
    ys = [y for line in chart.lines for _, y in line.points]
    if chart.level is not None:
        ys.append(chart.level[0])
    are_counts = all(float(y).is_integer() for y in ys)
    low = 0.0 if chart.has_zero else min(ys)
    y_ticks = ticks_of(low, max(ys), maximum=4, min_step=1.0 if are_counts else 0.0)
    left = 12 + CHARACTER * max(len(short_number(tick)) for tick in y_ticks)
    first, last = min(xs), max(xs)
    if first == last:
        first, last = first - 1, last + 1

    def x_of(value: float) -> float:
        return round(left + (value - first) / (last - first) * (WIDTH - RIGHT - left), 1)

    def y_of(value: float) -> float:
        share = (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": round(left, 1),
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "y_ticks": [(y_of(tick), short_number(tick)) for tick in y_ticks],
        "x_ticks": [(x_of(value), label) for value, label in chart.x_ticks],
        "level": None if chart.level is None else (y_of(chart.level[0]), chart.level[1]),
        "lines": [
            _arrange_line(line, [(x_of(x), y_of(y)) for x, y in line.points])
            for line in chart.lines
        ],
    }


def _arrange_line(line: Line, places: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return a line's path, and marks with hints: at each point, or only at the last one."""
    step = "H{}V{}" if line.is_stepped else "L{} {}"
    path = "M{} {}".format(*places[0]) + "".join(step.format(x, y) for x, y in places[1:])
    marked = places if line.hints else places[-1:]
    return {
        "style": line.style,
        "path": path,
        "radius": 2.5 if len(marked) > 20 else 3.5,
        "marks": list(zip(marked, line.hints or [line.name], strict=True)),
    }
