"""Line charts as SVG, for a page whose style sheet defines their colours.

A chart is drawn for a column of about 360 pixels, so that its text can be read on a phone. A page
puts several side by side. The heading and the legend are next to it, in HTML.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

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
        hints: What is said of each point under the pointer; empty for points without a mark.
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
        level: A value of y that is marked by a line across, and its name.
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


def draw(chart: Chart, number: int) -> Markup:
    """Return a chart as an `<svg>` element.

    Args:
        chart: The chart, which has a point.
        number: The chart's number in its page, in which no two elements have one name.
    """
    plot = _Plot.of(chart)
    head = Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-labelledby="chart-{n}">'
        '<title id="chart-{n}">{title}</title>'
    ).format(w=WIDTH, h=HEIGHT, n=number, title=chart.description)
    parts = [head, *plot.axes(chart), *plot.level(chart)]
    for line in chart.lines:
        parts += plot.line(line)
    return Markup("").join([*parts, Markup("</svg>")])


@dataclasses.dataclass(frozen=True)
class _Plot:
    """Where the values of a chart lie.

    Attributes:
        left: Where x starts, in pixels.
        x_range: The smallest and the largest x.
        y_ticks: Labelled values of y, the smallest and the largest among them.
    """

    left: float
    x_range: tuple[float, float]
    y_ticks: Sequence[float]

    @classmethod
    def of(cls, chart: Chart) -> _Plot:
        """Return the plot of a chart."""
        xs = [x for line in chart.lines for x, _ in line.points] + [x for x, _ in chart.x_ticks]
        ys = [y for line in chart.lines for _, y in line.points]
        if chart.level is not None:
            ys.append(chart.level[0])
        are_counts = all(float(y).is_integer() for y in ys)
        low = 0.0 if chart.has_zero else min(ys)
        y_ticks = ticks_of(low, max(ys), maximum=4, min_step=1.0 if are_counts else 0.0)
        longest = max(len(short_number(tick)) for tick in y_ticks)
        first, last = min(xs), max(xs)
        if first == last:
            first, last = first - 1, last + 1
        return cls(12 + CHARACTER * longest, (first, last), y_ticks)

    def x(self, value: float) -> float:
        """Return where a value of x lies."""
        first, last = self.x_range
        return self.left + (value - first) / (last - first) * (WIDTH - RIGHT - self.left)

    def y(self, value: float) -> float:
        """Return where a value of y lies."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    def axes(self, chart: Chart) -> Iterator[Markup]:
        """Yield the grid and its labels."""
        for tick in self.y_ticks:
            yield Markup(
                '<path class="grid" d="M{x1:.1f} {y:.1f}H{x2}"/>'
                '<text class="y" x="{x:.1f}" y="{base:.1f}">{label}</text>'
            ).format(
                x1=self.left,
                x2=WIDTH - RIGHT,
                y=self.y(tick),
                x=self.left - 6,
                base=self.y(tick) + 4,
                label=short_number(tick),
            )
        for value, label in chart.x_ticks:
            yield Markup(
                '<path class="tick" d="M{x:.1f} {top}v5"/>'
                '<text class="x" x="{x:.1f}" y="{base}">{label}</text>'
            ).format(x=self.x(value), top=HEIGHT - BOTTOM, base=HEIGHT - BOTTOM + 18, label=label)
        yield Markup('<text class="name" x="{}" y="{}">{}</text>').format(
            WIDTH - RIGHT, HEIGHT - 5, chart.x_name
        )

    def level(self, chart: Chart) -> Iterator[Markup]:
        """Yield the line across and its name."""
        if chart.level is not None:
            value, name = chart.level
            yield Markup(
                '<path class="level" d="M{x1:.1f} {y:.1f}H{x2}"/>'
                '<text class="level" x="{x2}" y="{base:.1f}">{name}</text>'
            ).format(
                x1=self.left,
                x2=WIDTH - RIGHT,
                y=self.y(value),
                base=self.y(value) + (14 if self.y(value) < TOP + 12 else -5),
                name=name,
            )

    def line(self, line: Line) -> Iterator[Markup]:
        """Yield a line, a mark at its last point, and one at each point that has a hint."""
        places = [(self.x(x), self.y(y)) for x, y in line.points]
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for x, y in places[1:]:
            path += f"H{x:.1f}V{y:.1f}" if line.is_stepped else f"L{x:.1f} {y:.1f}"
        yield Markup('<path class="line s{}" d="{}"/>').format(line.style, path)
        if not line.hints:
            places, hints = places[-1:], [line.name]
        else:
            hints = list(line.hints)
        for (x, y), hint in zip(places, hints, strict=True):
            yield Markup(
                '<circle class="s{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>'
            ).format(line.style, x, y, 2.5 if len(places) > 20 else 3.5, hint)
