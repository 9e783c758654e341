"""What the doctor finds, as data: an id that stays the same, a severity, what was seen, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How sure it is that a run would come to grief."""

    ERROR = "error"
    """The run would stop, train nothing, or train something else than it says."""
    WARNING = "warning"
    """The run would go, and is likely to be worth less than it costs."""
    NOTE = "note"
    """Worth knowing; nothing has to be done."""


FINDINGS: Mapping[str, str] = {
    "config": "the config can't be right: all that `validate` says",
    "config.migrated": "the file is of an older schema",
    "config.not-enabled": "`finetuning.enabled` is false: `run` refuses it",
    "unused.entry": "an entry that nothing in the config refers to",
    "target.unreachable": "no target function refers to the model that is trained, not even through others",
    "target.no-call": "rollouts ran, and none of their calls was by the target model inside a target function",
    "target.function-silent": "one of several target functions made no call of the target model",
    "settings.learning-rate-high": "a learning rate that breaks models of this size, or adapters",
    "settings.learning-rate-low": "a learning rate at which nothing moves; often one for all weights, used with LoRA",
    "settings.temperature-low": "a temperature at which rollouts of one example are alike",
    "settings.few-generations": "groups so small that a reward's comparison is mostly noise",
    "settings.warmup-long": "the learning rate would not reach its value before the run ends",
    "settings.clip-wide": "a clip range within which hardly any ratio is clipped",
    "settings.beta-unusual": "a DPO beta that holds the policy too tight or hardly at all",
    "settings.failure-unpriced": "failures that the policy causes earn as much as finished rollouts",
    "settings.no-test": "nothing is held out: the run can't say whether it helped",
    "model.unreadable": "the model's files can't be found or read",
    "model.unknown-size": "how large the model is can't be known without fetching it",
    "chat.prefix": "the chat template does not keep earlier turns as they were sampled",
    "chat.tools": "a tool call does not survive the chat template",
    "chat.end": "what the template writes after a turn is no token that ends the model's turn",
    "memory.too-much": "the model and its training do not fit the device",
    "memory.tight": "they fit, with little left",
    "memory.estimate": "what was counted, and what was not",
    "endpoint.failed": "an endpoint does not answer, or answers with an error",
    "endpoint.other-model": "an endpoint answers as another model than the one that was asked for",
    "endpoint.no-logprobs": "log-probabilities are asked for, and the endpoint returns none",
    "endpoint.not-asked": "an llm that can't be asked apart from a rollout",
    "backend.missing": "what the backend needs of this machine is not there",
    "backend.failed": "the backend says that it can't train, or does not answer",
    "data.unreadable": "a dataset is missing, empty or malformed",
    "data.leak": "held-out examples, or near-duplicates of them, are trained on",
    "data.not-looked": "near-duplicates between the sets were not looked for",
    "data.duplicates": "the training set holds the same example several times",
    "data.contradiction": "equal inputs with different targets in the training set",
    "data.held-out-small": "so few independent held-out examples that only a large gain can be seen",
    "data.left-out": "examples that the split leaves out, or records that can't be used",
    "reward.known-answers": "the reward does not put good answers above bad ones",
    "reward.unchecked": "there were no known answers to check the reward with",
    "reward.unknown": "rollouts whose reward is unknown, more than the config allows",
    "reward.own-judge": "the model that is trained is the judge of its own work",
    "reward.one-dominates": "in the weighted sum of several rewards one decides nearly alone",
    "reward.component-flat": "one of several rewards does not differ inside any group",
    "rollout.failed": "rollouts that broke down for a reason that is not the policy's",
    "rollout.policy-fails": "nearly all rollouts end in a failure that the policy caused",
    "signal.flat": "rewards do not differ inside groups: nothing to learn from",
    "signal.mostly-flat": "most groups are flat: most of the collection teaches nothing",
    "signal.no-items": "no group, pair or demonstration was formed at all",
    "signal.filtered": "a filter leaves out what there is to learn from",
    "signal.builder": "what the trajectory builder warns of",
    "tokens.cut": "completions that `max_tokens` cut off",
    "tokens.too-long": "items longer than the trainer takes",
    "method.fits": "which method fits the signal that was seen, and why",
    "method.other": "the configured method has no signal, and another one has",
    "stopped": "an area could not be looked at to its end",
}  # fmt: skip
"""Every id with its meaning; docs/doctor.md lists the same."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the doctor says."""

    id: str
    severity: Severity
    message: str
    fix: str
    key: str | None = None
    """Dotted path of the config that it is about."""
    file: str | None = None
    line: int | None = None

    def __post_init__(self) -> None:
        if self.id not in FINDINGS:
            raise ValueError(f"{self.id!r} is no finding that is known: add it to FINDINGS and docs/doctor.md")


def error(id: str, message: str, fix: str, key: str | None = None) -> Finding:
    """A finding that a run would not survive."""
    return Finding(id, Severity.ERROR, message, fix, key)


def warning(id: str, message: str, fix: str, key: str | None = None) -> Finding:
    """A finding that makes a run worth less."""
    return Finding(id, Severity.WARNING, message, fix, key)


def note(id: str, message: str, fix: str, key: str | None = None) -> Finding:
    """A finding that is worth knowing."""
    return Finding(id, Severity.NOTE, message, fix, key)
