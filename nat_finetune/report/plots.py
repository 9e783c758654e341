"""Curves as inline SVG and intervals as placed boxes: no script, no font, no request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 24
_DOTS = 40
"""Most points that are marked one by one."""
_POINTS = 240
"""Most points of a curve: more can't be told apart at its width, and a long run's page must stay small."""
_SPARK = (120, 24, 40)
"""Width, height and most points of a line in a table."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve, with an interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values, mapped to a range of pixels or percent."""

    bottom: float
    top: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies; the middle, if the range is a point."""
        if self.top <= self.bottom:
            return (self.start + self.end) / 2
        return self.start + (self.end - self.start) * (value - self.bottom) / (self.top - self.bottom)


def curve(
    title: str, points: Sequence[Point], *, unit: str = "step", lines: Mapping[str, float] | None = None
) -> Markup | None:
    """A line chart of the points that are finite, with named horizontal lines; None where there is nothing to draw."""
    points = [p for p in points if math.isfinite(p.y)]
    if not points:
        return None
    lines = {name: value for name, value in (lines or {}).items() if math.isfinite(value)}
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None and math.isfinite(v)] + list(lines.values())
    margin = (max(values) - min(values)) * 0.08 or abs(max(values)) * 0.1 or 1.0
    y = Scale(min(values) - margin, max(values) + margin, HEIGHT - BOTTOM, TOP)
    x = Scale(points[0].x, points[-1].x, LEFT, WIDTH - RIGHT)
    points = thinned(points, _POINTS)
    path = [(x.at(p.x), y.at(p.y)) for p in points]
    parts = [_axis(y), _ends(x, unit), *_lines(lines, y), _band(points, x, y)]
    parts.append(Markup('<polyline class="line" points="{}"/>').format(_coordinates(path)))
    if len(points) <= _DOTS:
        parts += [Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(*place) for place in path]
    first, last = points[0], points[-1]
    label = f"{title}: {first.y:.4g} at {unit} {first.x:g}, {last.y:.4g} at {unit} {last.x:g}"
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return svg.format(WIDTH, HEIGHT, label, Markup("").join(parts))


def spark(name: str, points: Sequence[Point]) -> Markup | None:
    """A small line without axes, for a table; None where there are fewer than two finite points."""
    width, height, most = _SPARK
    points = thinned([p for p in points if math.isfinite(p.y)], most)
    if len(points) < 2:
        return None
    values = [p.y for p in points]
    x, y = Scale(points[0].x, points[-1].x, 1, width - 1), Scale(min(values), max(values), height - 2, 2)
    svg = Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><polyline class="line" points="{}"/></svg>')
    label = f"course of {name.replace('_', ' ')}"
    return svg.format(width, height, label, _coordinates([(x.at(p.x), y.at(p.y)) for p in points]))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points: of each stretch its lowest and its highest, so that no spike is lost; both ends stay.

    >>> [p.y for p in thinned([Point(x, y) for x, y in enumerate([0, 1, 9, 2, 3, -5, 4, 5])], 4)]
    [0, 9, -5, 5]
    """
    if len(points) <= most:
        return list(points)
    inner, stretches = points[1:-1], max(1, (most - 2) // 2)
    kept = [points[0]]
    for index in range(stretches):
        stretch = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        low, high = min(stretch, key=lambda p: p.y), max(stretch, key=lambda p: p.y)
        kept += [low] if low is high else sorted((low, high), key=lambda p: p.x)
    return [*kept, points[-1]]


def ticks(bottom: float, top: float, about: int = 4) -> list[float]:
    """Round values between two ends.

    >>> ticks(0.48, 0.93)
    [0.5, 0.6, 0.7, 0.8, 0.9]
    """
    rough = (top - bottom) / about
    if not rough > 0 or not math.isfinite(rough):
        return [bottom]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.6)
    first, last = math.ceil(bottom / step - 1e-9), math.floor(top / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _axis(y: Scale) -> Markup:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    marks = Markup("")
    for value in ticks(y.bottom, y.top):
        height = y.at(value)
        marks += line.format(LEFT, WIDTH - RIGHT, height, height) + text.format(LEFT - 6, height + 4, f"{value:g}")
    return marks


def _ends(x: Scale, unit: str) -> Markup:
    text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
    if x.top <= x.bottom:
        return text.format(x.at(x.bottom), HEIGHT - 6, "middle", f"{unit} {x.bottom:g}")
    start = text.format(x.start, HEIGHT - 6, "start", f"{unit} {x.bottom:g}")
    return start + text.format(x.end, HEIGHT - 6, "end", f"{unit} {x.top:g}")


def _lines(lines: Mapping[str, float], y: Scale) -> list[Markup]:
    line = Markup('<line class="reference" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
    text = Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>')
    drawn, last = [], math.inf
    for name, value in sorted(lines.items(), key=lambda item: item[1]):
        height = y.at(value)
        last = min(height - 4, last - 12)  # names of lines that are close stand above one another
        drawn.append(line.format(LEFT, WIDTH - RIGHT, height, height))
        drawn.append(text.format(WIDTH - RIGHT - 2, max(last, 10), f"{name.replace('_', ' ')} {value:.3g}"))
    return drawn


def _band(points: Sequence[Point], x: Scale, y: Scale) -> Markup:
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return Markup("")
    above = [(x.at(at), y.at(high)) for at, _, high in known]
    below = [(x.at(at), y.at(low)) for at, low, _ in reversed(known)]
    return Markup('<polygon class="band" points="{}"/>').format(_coordinates(above + below))


def _coordinates(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


# -------------------------------------------------------------------------------------------------------------- intervals


def comparison(row: Mapping[str, Mapping[str, float | None] | None], references: Mapping[str, float]) -> Markup | None:
    """Before and after on one scale, as dots with their intervals, and known policies as named marks; None if neither is known.

    Everything is placed in percent of the width, so that it reads on a phone.
    """
    sides = {side: estimate for side in ("before", "after") if (estimate := row.get(side)) and estimate["mean"] is not None}
    if not sides:
        return None
    values = [v for e in sides.values() for v in (e["mean"], e["low"], e["high"]) if v is not None] + list(references.values())
    scale = Scale(0.0, 1.0, 0.0, 100.0) if 0 <= min(values) <= max(values) <= 1 else Scale(min(values), max(values), 2.0, 98.0)
    parts = [_mark(index, name, value, scale) for index, (name, value) in enumerate(references.items())]
    parts += [_side(side, estimate, scale, len(references)) for side, estimate in sides.items()]
    parts += [Markup('<span class="end">{}</span>').format(f"{value:.4g}") for value in (scale.bottom, scale.top)]
    said = "; ".join(f"{side} {estimate['mean']:.3f}" for side, estimate in sides.items())
    box = Markup('<div class="scale" role="img" aria-label="{}" style="height:{:.1f}rem">{}</div>')
    return box.format(said, 1.15 * len(references) + 2.6, Markup("").join(parts))


def _mark(index: int, name: str, value: float, scale: Scale) -> Markup:
    place = scale.at(value)
    mark = Markup('<span class="mark{}" style="left:{:.2f}%;top:{:.2f}rem">{}</span>')
    return mark.format(" left" if place > 55 else "", place, 1.15 * index, f"{name.replace('_', ' ')} {value:.3f}")


def _side(side: str, estimate: Mapping[str, float | None], scale: Scale, above: int) -> Markup:
    top = 1.15 * above + (0.6 if side == "before" else 1.7)
    dot = Markup('<span class="point {}" style="left:{:.2f}%;top:{:.2f}rem"></span>').format(
        side, scale.at(estimate["mean"] or 0.0), top
    )
    low, high = estimate["low"], estimate["high"]
    if low is None or high is None:
        return dot
    start, end = scale.at(low), scale.at(high)
    bar = Markup('<span class="whisker {}" style="left:{:.2f}%;width:{:.2f}%;top:{:.2f}rem"></span>')
    return bar.format(side, start, end - start, top) + dot
