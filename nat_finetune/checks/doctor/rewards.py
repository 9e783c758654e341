"""Does the evaluator put good answers above bad ones? What `calibration` finds, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.known_answers import Findings


def reward_findings(config: RunConfig, found: Findings) -> Iterator[Finding]:
    """Problems stop a run unless `calibration.on_problem` or `enabled` says otherwise."""
    settings, key = config.finetuning.calibration, "finetuning.reward_function"
    say = error if settings.enabled and settings.on_problem == "stop" else warning
    for text in found.problems:
        yield say("reward.known-answers", text, "mend the evaluator: docs/rewards.md says how its known answers are made", key)
    if not found.examples or found.notes:
        notes = "; ".join(found.notes) or "no known answers"
        yield note("reward.unchecked", notes, "give examples targets, bad_answers or verdicts (finetuning.calibration)", key)
