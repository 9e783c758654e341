"""`report.html`: one self-contained file, readable offline, from the data of `report.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from nat_finetune.report.plots import Point, curve


def render(report: Mapping[str, Any]) -> str:
    """The page. Everything that a user or a model wrote is escaped; a missing number reads "unknown"."""
    environment = Environment(
        loader=PackageLoader("nat_finetune.report", "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": signed,
        "percent": percent,
        "whole": whole,
        "words": words,
        "json": _json,
    }
    return environment.get_template("template.html.jinja").render(report=report, curves=curves(report))


def curves(report: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(title, SVG) of what can be drawn: validation, rewards, and the update's figures."""
    steps, metrics = report["steps"], report["metrics"]
    drawn = []
    validations = report["validations"]
    for name in dict.fromkeys(name for point in validations for name in point["metrics"]):
        points = [
            Point(v["step"], e["mean"], e["low"], e["high"])
            for v in validations
            if (e := v["metrics"].get(name)) is not None and e["mean"] is not None
        ]
        title = f"{name} on the validation set"
        drawn.append((title, curve(title, points, unit="after step", lines=metrics.get(name, {}).get("reference"))))
    for name in report["target"]["reward"]:
        points = [
            Point(step["step"], step["reward"][name]["mean"])
            for step in steps
            if name in step["reward"] and step["reward"][name]["mean"] is not None
        ]
        title = f"{name}, mean of the training rollouts"
        drawn.append((title, curve(title, points)))
    drawn += [_update_curve(steps, key) for key in ("loss", "grad_norm", "accuracy", "margin", "entropy", "kl_ref")]
    return [(title, svg) for title, svg in drawn if svg is not None]


def _update_curve(steps: Sequence[Mapping[str, Any]], key: str) -> tuple[str, Any]:
    points = [Point(s["step"], s["update"][key]) for s in steps if s["update"] and s["update"].get(key) is not None]
    return f"{words(key)} of the updates", curve(words(key), points) if len(points) > 1 else None


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or "unknown"."""
    return "unknown" if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """A difference, or "unknown"."""
    return "unknown" if value is None else f"{value:+.3f}"


def percent(value: float | None) -> str:
    """A share, or "unknown"."""
    return "unknown" if value is None else f"{value * 100:.1f} %"


def whole(value: int | None) -> str:
    """A count, or "unknown"."""
    return "unknown" if value is None else f"{value:,}"


def words(name: str | None) -> str:
    """A name as words."""
    return "" if name is None else str(name).replace("_", " ")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
