"""The learner's own figures, update by update: one row each, with its unit and where it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nat_finetune.report.plots import Point, spark

_UNITS = {
    "entropy": "nats a token",
    "kl_ref": "nats a token",
    "kl_previous": "nats a token",
    "approx_kl": "nats a token",
    "clip_fraction": "share of tokens",
    "zero_advantage_share": "share of tokens",
    "response_tokens_mean": "tokens",
    "grad_norm": "",
    "ratio_start_off_max_abs": "distance from 1",
    "sampler_trainer_max_abs": "nats",
    "agreement_max_abs": "nats",
    "canary_moved": "nats",
    "canary_from_base": "nats",
}
"""In the order of the table; docs/algorithms.md says what each is."""

_AGREEMENT = {
    "max_abs": "agreement_max_abs",
    "mean_abs": "agreement_mean_abs",
    "moved": "canary_moved",
    "from_base": "canary_from_base",
}


def agreement_of(step: Mapping[str, Any]) -> dict[str, float | None] | None:
    """What the canary found after a step's update, nats, for `steps[].agreement`; None where there was no update."""
    update = step.get("update")
    return None if not update else {name: update.get(key) for name, key in _AGREEMENT.items()}


def learner_rows(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure that is known: name, unit, first, last, least and most, and a line of its course."""
    rows = []
    for name, unit in _UNITS.items():
        known = [(s["step"], value) for s in steps if s.get("update") and (value := s["update"].get(name)) is not None]
        if known:
            values = [value for _, value in known]
            drawn = spark(name, [Point(float(step), value) for step, value in known])
            ends = {"first": values[0], "last": values[-1], "least": min(values), "most": max(values)}
            rows.append({"name": name, "unit": unit, "spark": drawn, **ends})
    return rows
