"""The settings of GRPO and its relatives, and which of them a chosen combination would ignore."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from nat_finetune.algorithms.presets import PRESETS, Preset
from nat_finetune.config.component import Section
from nat_finetune.local.settings import Importance, PolicyGradientSettings

PresetName = Literal["grpo", "gdpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "rloo"]


class ImportanceConfig(Section):
    """Correction for a sampler whose logprobs are not the trainer's (another precision, another engine)."""

    mode: Literal["truncate_tokens", "mask_tokens", "truncate_sequences", "mask_sequences", "mask_sequences_by_mean"]
    """Bound the weight of each token or sequence, or leave those outside the bounds out."""
    low: float = Field(0.0, ge=0)
    high: float = Field(2.0, gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> ImportanceConfig:
        if self.low > self.high:
            raise ValueError(f"low must not be above high: {self.low} and {self.high}")
        return self


class PolicyGradientConfig(Section):
    """GRPO and its relatives: `name` is a preset, every other key replaces one of its choices."""

    name: PresetName
    """A named set of choices; docs/algorithms.md lists them."""
    advantage: Literal["return", "gdpo"] | None = None
    """What is compared: the weighted sum of the rewards, or each reward by itself before they are added. Here and below, null:
    as the preset has it."""
    batch_norm: bool | None = None
    """Whether advantages are then brought to mean 0 and deviation 1 over the whole step; null: with `advantage: gdpo`."""
    baseline: Literal["mean", "leave_one_out"] | None = None
    """What a reward is compared with inside its group."""
    scale: Literal["group", "batch", "none"] | None = None
    """The deviation that it is divided by."""
    eps: float | None = Field(None, ge=0)
    """Added to the deviation."""
    ratio: Literal["token", "sequence"] | None = None
    """Of probabilities, new to old: per token, or the geometric mean over the sequence."""
    surrogate: Literal["clipped", "cispo", "reinforce"] | None = None
    """PPO's bound; the clipped ratio as a weight without gradient; or no ratio at all."""
    clip_low: float | None = Field(None, ge=0, le=1)
    """Distance below ratio 1."""
    clip_high: float | None = Field(None, ge=0)
    """Distance above ratio 1."""
    dual_clip: float | None = Field(None, gt=1)
    """A token with negative advantage costs at most this many times its advantage."""
    ratio_cap: float | None = Field(None, gt=1)
    """The ratio is held below this even where the clip would not bind."""
    reduction: Literal["token_mean", "sequence_mean", "rollout_mean", "constant_length"] | None = None
    """What counts equally: tokens, rows, rollouts, or no length in any denominator."""
    length_limit: int | None = Field(None, ge=1)
    """Tokens: the constant of `reduction: constant_length` (the most that a sequence trains), and the limit of the overlong
    penalty (the most that a rollout samples)."""
    kl_coefficient: float | None = Field(None, ge=0)
    """Weight of the KL to the policy as it was before training; 0 needs no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    kl_gradient: Literal["direct", "score_function"] | None = None
    """Of the expression as it stands, or of the KL in expectation."""
    overlong_buffer_share: float | None = Field(None, ge=0, le=1)
    """Share of `length_limit` in which the penalty on long answers grows; 0: no penalty."""
    overlong_penalty: float | None = Field(None, ge=0)
    """What an answer at the limit loses, in units of reward."""
    importance: ImportanceConfig | None = None
    """Absent: no correction."""

    def preset(self) -> Preset:
        """All choices, resolved."""
        given = {
            name: value
            for name, value in self.model_dump(exclude={"name", "importance", "length_limit"}).items()
            if value is not None
        }
        chosen = {**_as_dict(PRESETS[self.name]), **given}
        if "advantage" in given and "batch_norm" not in given:
            chosen["batch_norm"] = given["advantage"] == "gdpo"
        if chosen["surrogate"] == "reinforce":
            chosen |= {name: given.get(name) for name in ("clip_low", "clip_high")}
        if not chosen["overlong_buffer_share"]:
            chosen["overlong_buffer_share"] = None
        return Preset(**chosen)

    def resolved(self) -> dict[str, Any]:
        """Every choice that has an effect, for people to read."""
        chosen = self.preset()
        shown = {"name": self.name, **_as_dict(chosen)}
        hidden = [
            *(["clip_low", "clip_high", "dual_clip", "ratio_cap", "ratio"] if chosen.surrogate == "reinforce" else []),
            *(["eps"] if chosen.scale == "none" and not chosen.batch_norm else []),
            *(["kl_estimator", "kl_gradient"] if not chosen.kl_coefficient else []),
            *(["overlong_buffer_share", "overlong_penalty"] if chosen.overlong_buffer_share is None else []),
            *([] if chosen.dual_clip is not None else ["dual_clip"]),
            *([] if chosen.ratio_cap is not None else ["ratio_cap"]),
        ]
        shown |= {"length_limit": self.length_limit} if self.length_limit is not None else {}
        if self.importance is not None:
            shown["importance"] = f"{self.importance.mode} from {self.importance.low:g} to {self.importance.high:g}"
        return {name: value for name, value in shown.items() if name not in hidden}

    def settings(self) -> PolicyGradientSettings:
        """All of this, as the local backend wants it."""
        chosen = self.importance
        correction = None if chosen is None else Importance(chosen.mode, chosen.low, chosen.high)
        return PolicyGradientSettings(self.preset(), self.length_limit, correction)

    @model_validator(mode="after")
    def _fits(self) -> PolicyGradientConfig:
        chosen = self.preset()
        problems = [
            *self._ignored(chosen),
            *(
                ["clip_low and clip_high are needed: the preset has none"]
                if chosen.surrogate != "reinforce" and (chosen.clip_low is None or chosen.clip_high is None)
                else []
            ),
            *(
                [f"ratio_cap must be above 1 + clip_high = {1 + chosen.clip_high:g}"]
                if chosen.ratio_cap is not None and chosen.clip_high is not None and chosen.ratio_cap <= 1 + chosen.clip_high
                else []
            ),
            *self._length(chosen),
            *(
                ["the overlong penalty has no place among rewards that are compared apart: make length a reward of its own"]
                if chosen.advantage == "gdpo" and chosen.overlong_buffer_share is not None
                else []
            ),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _ignored(self, chosen: Preset) -> list[str]:
        """What is set and would have no effect."""
        unused: dict[str, str] = {}
        if chosen.surrogate == "reinforce":
            unused |= dict.fromkeys(
                ("clip_low", "clip_high", "dual_clip", "ratio_cap", "ratio"), "surrogate: reinforce has no ratio"
            )
        if chosen.surrogate == "cispo":
            unused |= dict.fromkeys(("dual_clip", "ratio_cap"), "cispo's weights are bounded already")
        if chosen.scale == "none" and not chosen.batch_norm:
            unused["eps"] = "scale: none divides by nothing"
        if not chosen.kl_coefficient:
            unused |= dict.fromkeys(("kl_estimator", "kl_gradient"), "kl_coefficient is 0")
        if chosen.overlong_buffer_share is None:
            unused["overlong_penalty"] = "there is no overlong_buffer_share"
        given = self.model_fields_set
        return [f"{name} would be ignored: {why}" for name, why in unused.items() if name in given and _set(self, name)]

    def _length(self, chosen: Preset) -> list[str]:
        users = [
            *(["reduction: constant_length"] if chosen.reduction == "constant_length" else []),
            *(["the overlong penalty"] if chosen.overlong_buffer_share is not None else []),
        ]
        if users and self.length_limit is None:
            most = "the most tokens that a rollout may sample (llms.NAME.max_tokens for workflows of one call)"
            return [f"{' and '.join(users)} of {self.name} needs length_limit: {most}"]
        if not users and self.length_limit is not None:
            return ["length_limit would be ignored: only reduction: constant_length and the overlong penalty use it"]
        return []


def _as_dict(preset: Preset) -> dict[str, object]:
    return {name: getattr(preset, name) for name in Preset.__dataclass_fields__}


def _set(config: Section, name: str) -> bool:
    return getattr(config, name) is not None
