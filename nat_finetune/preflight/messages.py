"""What calibration found, in words."""

from __future__ import annotations

from nat_finetune.data.known_answers import GOLD, Findings
from nat_finetune.preflight.calibration import VerdictCheck

GO_ON = "mend the evaluator (docs/rewards.md), or set finetuning.calibration.on_problem: warn to train on it all the same"


def known_answers_sentence(found: Findings) -> str:
    """One sentence about gold and bad answers."""
    if not found.examples:
        return f"the reward was not checked on known answers: {'; '.join(found.notes)}"
    others = ", ".join(f"{kind} {mean:.3g}" for kind, mean in found.means.items() if kind != GOLD)
    bad = f", wrong ones: {others}" if others else ""
    notes = f" ({'; '.join(found.notes)})" if found.notes else ""
    return f"before training, gold answers of {found.examples} examples scored {found.means[GOLD]:.3g} on average{bad}{notes}"


def known_answers_message(found: Findings) -> str:
    """Why a reward that fails on known answers is not trained."""
    first = f"the reward fails on known answers: {found.problems[0]}"
    return "\n".join(
        [
            first,
            *(f"  {problem}" for problem in found.problems[1:]),
            known_answers_sentence(found),
            "if the dataset's answers are no outputs of the workflow, let the evaluator say which are (`known_outputs`)",
            GO_ON,
        ]
    )


def verdicts_lines(check: VerdictCheck) -> list[str]:
    """What reviewers' verdicts say of the reward, one finding a line."""
    value = check.agreement.concordance
    interval = "unknown" if value.low is None or value.high is None else f"[{value.low:.3f}, {value.high:.3f}]"
    kappa = "unknown" if check.agreement.kappa is None else f"{check.agreement.kappa:.2f}"
    lines = [
        f"agreement with reviewers: {value.mean or 0.0:.3f} {interval} (0.5 is chance) on {check.scored} verdicts, "
        f"{check.agreement.pairs} pairs, {value.n} examples; kappa {kappa}",
        f"mean score: approved {check.agreement.approved or 0.0:.3g}, rejected {check.agreement.rejected or 0.0:.3g}",
        f"repeatability: {check.repeated_equal:.0%} scored the same twice, largest change {check.largest_change:.3g}",
    ]
    lines += [f"exploit: {e.name} earns {e.mean:.3g} (mean of {e.tried})" for e in check.exploits]
    return [*lines, *(f"note: {note}" for note in check.notes)]


def verdicts_message(check: VerdictCheck) -> str:
    """Why a reward that disagrees with reviewers is not trained."""
    first = f"the reward is not what the reviewers want: {'; '.join(check.problems)}"
    return "\n".join([first, *(f"  {line}" for line in verdicts_lines(check)), GO_ON])
