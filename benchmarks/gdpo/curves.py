"""Mean training curves of the arms, two panels side by side, as an SVG that reads on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 400, 240, 44, 26, 44
COLOURS = ("#d1495b", "#b8860b", "#5b7db1", "#1b8a5a")
RANGES = {"format": (0.0, 1.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)), "correctness": (-1.0, 3.0, (-1.0, 0.0, 1.0, 2.0, 3.0))}


def draw(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """`panels`: metric to arm to its mean at each step."""
    parts = [_panel(metric, arms, index * (WIDTH + 10)) for index, (metric, arms) in enumerate(panels.items())]
    names = list(next(iter(panels.values())))
    legend = "".join(
        f'<text x="{LEFT + index * 180}" y="{HEIGHT - 6}" fill="{colour}" font-weight="600">{name}</text>'
        for index, (name, colour) in enumerate(zip(names, COLOURS, strict=False))
    )
    size = f'viewBox="0 0 {2 * WIDTH + 20} {HEIGHT}" width="{2 * WIDTH + 20}"'
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
    return f"<svg {style} {size}>{''.join(parts)}{legend}</svg>\n"


def _panel(metric: str, arms: Mapping[str, Sequence[float]], shift: int) -> str:
    bottom, top, ticks = RANGES[metric]

    def height(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (top - value) / (top - bottom)

    parts = [f'<text x="{LEFT}" y="16" fill="#888">{metric} in training, by update</text>']
    for tick in ticks:
        y = height(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" fill="#888" text-anchor="end">{tick:g}</text>')
    for curve, colour in zip(arms.values(), COLOURS, strict=False):
        across = (WIDTH - 10 - LEFT) / max(1, len(curve) - 1)
        points = " ".join(f"{LEFT + step * across:.1f},{height(value):.1f}" for step, value in enumerate(curve))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return f'<g transform="translate({shift},0)">{"".join(parts)}</g>'
