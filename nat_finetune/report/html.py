"""`report.html`: one self-contained file, readable offline, from the data of `report.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from nat_finetune.config.fit import algorithm_line
from nat_finetune.report.learner import learner_rows
from nat_finetune.report.plots import Point, comparison, curve
from nat_finetune.report.rewards import reward_rows
from nat_finetune.report.transcripts import as_json, cut, shown_turns

_FIGURES = (
    "loss",
    "grad_norm",
    "accuracy",
    "margin",
    "entropy",
    "approx_kl",
    "kl_ref",
    "kl_ref_fresh",
    "sampler_trainer_max_abs",
)
"""Of the updates' metrics, those that are drawn."""
_STEPS = 200
"""Most steps that are listed one by one."""
_ROUNDING = 1e-9
"""A figure that never gets larger is 0 but for rounding, such as the KL of updates of one step: nothing to look at."""


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
        "figure": figure,
        "interval": interval,
        "percent": percent,
        "whole": whole,
        "words": words,
        "json": as_json,
        "cut": cut,
    }
    return environment.get_template("template.html.jinja").render(
        report=report,
        verdict=verdict(report),
        comparisons={name: comparison(row, row["reference"]) for name, row in report["metrics"].items()},
        curves=list(curves(report)),
        failed=failed,
        whole_share=total([row["share"] for row in report["ledger"]["rows"]]),
        rewards=list(dict.fromkeys(name for step in report["steps"] for name in step["reward"])),
        listed=listed(report["steps"]),
        learner_rows=learner_rows(report["steps"]),
        reward_rows=reward_rows(report["steps"], report["target"]["reward"]),
        algorithm_line=algorithm_line,
        facts=facts(report["environment"]),
        transcripts=[{**rollout, "turns": shown_turns(rollout["turns"])} for rollout in report["examples"]],
    )


def verdict(report: Mapping[str, Any]) -> tuple[str, str, str]:
    """How the run ended, the sentence about it, and its tone: good, bad or plain."""
    reason = report["exit_reason"] or "unknown"
    tone = "good" if reason == "improved" else "bad" if reason == "worse" or report["exit_code"] else "plain"
    return reason, report["headline"].removeprefix(f"{reason}: "), tone


def curves(report: Mapping[str, Any]) -> Iterator[tuple[str, Markup]]:
    """(title, SVG) of what can be drawn: validation, rewards, and the update's figures."""
    steps, metrics, validations = report["steps"], report["metrics"], report["validations"]
    drawn: list[tuple[str, Markup | None]] = []
    for name in dict.fromkeys(name for point in validations for name in point["metrics"]):
        points = [
            Point(v["step"], e["mean"], e["low"], e["high"])
            for v in validations
            if (e := v["metrics"].get(name)) is not None and e["mean"] is not None
        ]
        title = f"{words(name)} on the validation set"
        drawn.append((title, curve(title, points, unit="after step", lines=metrics.get(name, {}).get("reference"))))
    for name in dict.fromkeys(name for step in steps for name in step["reward"]):
        points = [
            Point(step["step"], step["reward"][name]["mean"])
            for step in steps
            if name in step["reward"] and step["reward"][name]["mean"] is not None
        ]
        title = f"{words(name)}, mean over training rollouts"
        drawn.append((title, curve(title, points)))
    for key in _FIGURES:
        points = [Point(s["step"], s["update"][key]) for s in steps if s["update"] and s["update"].get(key) is not None]
        title = f"{words(key)} of the updates"
        telling = len(points) > 1 and max(abs(p.y) for p in points) > _ROUNDING
        drawn.append((title, curve(title, points) if telling else None))
    return ((title, svg) for title, svg in drawn if svg is not None)


def listed(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps of the table: all, or of many every so-manieth, and the last one."""
    stride = -(-len(steps) // _STEPS)
    return [step for index, step in enumerate(steps) if index % stride == 0 or index == len(steps) - 1] if steps else []


def failed(step: Mapping[str, Any]) -> int | None:
    """Rollouts of a step that failed through no fault of the policy."""
    count: int | None = step["failed"].get("infrastructure")
    return count


def facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The environment as names and texts; nested names are joined."""
    lines: list[tuple[str, str]] = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            lines += [(f"{name} {below}", text) for below, text in facts(value)]
        elif isinstance(value, bool):
            lines.append((words(name), "yes" if value else "no"))
        else:
            lines.append((words(name), "unknown" if value is None else str(value)))
    return lines


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or "unknown"."""
    return "unknown" if value is None else f"{value:.{digits}f}"


def figure(value: float | None) -> str:
    """A figure of any size, to three digits, or "unknown"."""
    return "unknown" if value is None else f"{value:.3g}"


def signed(value: float | None) -> str:
    """A difference, or "unknown"."""
    return "unknown" if value is None else f"{value:+.3f}"


def interval(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    """An estimate's interval, or "unknown"."""
    if estimate is None or estimate["low"] is None or estimate["high"] is None:
        return "unknown"
    return f"[{estimate['low']:{sign}.3f}, {estimate['high']:{sign}.3f}]"


def percent(value: float | None) -> str:
    """A share, or "unknown"."""
    return "unknown" if value is None else f"{value * 100:.1f} %"


def whole(value: int | None) -> str:
    """A count, or "unknown"."""
    return "unknown" if value is None else f"{value:,}"


def words(name: str | None) -> str:
    """A name as words."""
    return "" if name is None else str(name).replace("_", " ")


def total(shares: Sequence[float | None]) -> float | None:
    """The sum of shares, None where one is unknown."""
    known = [share for share in shares if share is not None]
    return sum(known) if shares and len(known) == len(shares) else None
