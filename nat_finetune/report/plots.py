"""Curves as inline SVG: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560, 200
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve, with an interval where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


def curve(title: str, points: Sequence[Point], *, unit: str = "step", lines: dict[str, float] | None = None) -> Markup | None:
    """A line chart of the points, with named horizontal lines; None where there is nothing to draw."""
    if not points:
        return None
    lines = lines or {}
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None] + list(lines.values())
    bottom, top = min(values), max(values)
    margin = (top - bottom) * 0.08 or abs(top) * 0.1 or 1.0
    bottom, top = bottom - margin, top + margin
    first, last = points[0].x, points[-1].x

    def at_x(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

    def at_y(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - bottom) / (top - bottom))

    parts = [_axis(at_y, bottom, top), _ends(at_x, first, last, unit)]
    parts += [_reference(name, at_y(value), value) for name, value in lines.items()]
    band = [p for p in points if p.low is not None and p.high is not None]
    if len(band) > 1:
        edge = [(at_x(p.x), at_y(p.high or 0.0)) for p in band] + [(at_x(p.x), at_y(p.low or 0.0)) for p in reversed(band)]
        parts.append(Markup('<polygon class="band" points="{}"/>').format(_coordinates(edge)))
    path = [(at_x(p.x), at_y(p.y)) for p in points]
    parts.append(Markup('<polyline class="line" points="{}"/>').format(_coordinates(path)))
    if len(points) <= 40:
        parts += [Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(x, y) for x, y in path]
    label = f"{title}: {points[0].y:.4g} at {unit} {first:g}, {points[-1].y:.4g} at {unit} {last:g}"
    svg = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
    return svg.format(WIDTH, HEIGHT, label, Markup("").join(parts))


def _axis(at_y: Callable[[float], float], bottom: float, top: float) -> Markup:
    marks = Markup("")
    for share in (0.0, 0.5, 1.0):
        value = bottom + (top - bottom) * share
        y = at_y(value)
        marks += Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
        marks += Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 6, y + 4, f"{value:.3g}"
        )
    return marks


def _ends(at_x: Callable[[float], float], first: float, last: float, unit: str) -> Markup:
    marks = Markup("")
    for value, anchor in ((first, "start"), (last, "end")):
        text = f"{unit} {value:g}"
        marks += Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            at_x(value), HEIGHT - 6, anchor, text
        )
        if last == first:
            break
    return marks


def _reference(name: str, y: float, value: float) -> Markup:
    line = Markup('<line class="reference" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
    text = Markup('<text class="tick" x="{}" y="{:.1f}">{}</text>').format(
        LEFT + 6, y - 4, f"{name.replace('_', ' ')} {value:.3f}"
    )
    return line + text


def _coordinates(points: Sequence[tuple[float, float]]) -> str:
    return str(escape(" ".join(f"{x:.1f},{y:.1f}" for x, y in points)))
