"""Named sets of choices; data only, so that a config can be checked and printed without torch.

Each field is a name or number that the maths files understand; a config may override any of them by name. What a paper
adds outside the loss (DAPO's dynamic sampling) is a setting of the run, not of the loss, and is not hidden in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Every choice of a policy-gradient update, resolved."""

    baseline: Literal["mean", "leave_one_out"]
    """What a reward is compared with inside its group: `advantages.BASELINES`."""
    scale: Literal["group", "batch", "none"]
    """The deviation it is divided by: `advantages.SCALES`."""
    ratio: Literal["token", "sequence"]
    """`policy_gradient.RATIOS`."""
    surrogate: Literal["clipped", "cispo", "reinforce"]
    """`policy_gradient.SURROGATES`."""
    clip_low: float | None
    """Distance below ratio 1; None only for `reinforce`, which has no ratio."""
    clip_high: float | None
    """Distance above ratio 1."""
    reduction: Literal["token_mean", "sequence_mean", "rollout_mean", "constant_length"]
    """`reduce.REDUCTIONS`."""
    advantage: Literal["return", "gdpo"] = "return"
    """What is made relative: the weighted sum of the rewards, or each reward by itself before they are added."""
    batch_norm: bool = False
    """Whether advantages are brought to mean 0 and deviation 1 over the whole step."""
    dual_clip: float | None = None
    ratio_cap: float | None = None
    eps: float = 1e-4
    """Added to every deviation that something is divided by."""
    kl_coefficient: float = 0.0
    """Weight of the KL to the reference policy; 0 needs no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_gradient: Literal["direct", "score_function"] = "direct"
    overlong_buffer_share: float | None = None
    """Share of the length limit in which the soft overlong penalty grows; None = no penalty."""
    overlong_penalty: float = 1.0
    """What an answer at the limit loses, in units of reward; has no effect without a buffer."""


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # arXiv:2402.03300, but a mean over tokens, as every current trainer does (the paper's is sequence_mean, and
        # favours short right answers and long wrong ones).
        "grpo": Preset(
            baseline="mean",
            scale="group",
            ratio="token",
            surrogate="clipped",
            clip_low=0.2,
            clip_high=0.2,
            reduction="token_mean",
        ),
        # arXiv:2601.05242: grpo, but each reward has an advantage of its own.
        "gdpo": Preset(
            baseline="mean",
            scale="group",
            advantage="gdpo",
            batch_norm=True,
            ratio="token",
            surrogate="clipped",
            clip_low=0.2,
            clip_high=0.2,
            reduction="token_mean",
        ),
        # arXiv:2503.20783: no deviation, no length in any denominator.
        "dr_grpo": Preset(
            baseline="mean",
            scale="none",
            ratio="token",
            surrogate="clipped",
            clip_low=0.2,
            clip_high=0.2,
            reduction="constant_length",
        ),
        # arXiv:2503.14476: clip higher, token mean, soft overlong penalty over the last 4096 of 20480 tokens.
        "dapo": Preset(
            baseline="mean",
            scale="group",
            ratio="token",
            surrogate="clipped",
            clip_low=0.2,
            clip_high=0.28,
            reduction="token_mean",
            overlong_buffer_share=0.2,
        ),
        # arXiv:2507.18071 §5.1: bounds of a sequence ratio are three orders of magnitude tighter.
        "gspo": Preset(
            baseline="mean",
            scale="group",
            ratio="sequence",
            surrogate="clipped",
            clip_low=3e-4,
            clip_high=4e-4,
            reduction="sequence_mean",
        ),
        # arXiv:2506.13585: weights capped at 5, no floor.
        "cispo": Preset(
            baseline="mean",
            scale="group",
            ratio="token",
            surrogate="cispo",
            clip_low=1.0,
            clip_high=4.0,
            reduction="token_mean",
        ),
        # Williams 1992 with the group's mean as baseline; a constant normaliser keeps the gradient unbiased.
        "reinforce": Preset(
            baseline="mean",
            scale="none",
            ratio="token",
            surrogate="reinforce",
            clip_low=None,
            clip_high=None,
            reduction="constant_length",
        ),
        # arXiv:2402.14740: the mean of the others, which leaves the gradient unbiased also at small groups.
        "rloo": Preset(
            baseline="leave_one_out",
            scale="none",
            ratio="token",
            surrogate="reinforce",
            clip_low=None,
            clip_high=None,
            reduction="constant_length",
        ),
    }
)
"""By the config's name."""
