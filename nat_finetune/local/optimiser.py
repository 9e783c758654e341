"""AdamW with a learning-rate schedule and clipping, on the trained weights of a model."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nat_finetune.errors import BackendError
from nat_finetune.local.settings import OptimiserSettings
from nat_finetune.local.weights import TrainedWeights


def learning_rate(settings: OptimiserSettings, step: int) -> float:
    """The learning rate of optimiser step `step`, counted from 0; it is never 0.

    Warm-up ends with the full rate at step `warmup_steps`. After `total_steps` the last step's rate is kept: a step that
    changes nothing would look like training.

    >>> [learning_rate(OptimiserSettings(1.0, schedule="linear", warmup_steps=2, total_steps=4), step) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.5]
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant" or settings.total_steps is None:
        return settings.learning_rate
    done = (min(step, settings.total_steps - 1) - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps)
    left = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.learning_rate * left


class Optimiser:
    """Steps on the masters of `weights`; counts its steps over all updates of a run."""

    def __init__(self, weights: TrainedWeights, settings: OptimiserSettings) -> None:
        self.steps = 0
        """Optimiser steps made so far."""
        self._weights = weights
        self._settings = settings
        self._names = list(weights.masters)
        matrices = [master for master in weights.masters.values() if master.ndim >= 2]
        others = [master for master in weights.masters.values() if master.ndim < 2]
        self._adam = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            fused=all(master.device.type in ("cpu", "cuda", "mps") for master in weights.masters.values()),
        )

    def step(self) -> dict[str, float]:
        """Clip the gathered gradients, step, publish and clear; returns `grad_norm` (before clipping) and `learning_rate`.

        Raises:
            BackendError: the gradient is not finite; nothing was changed.
        """
        masters = [master for master in self._weights.masters.values() if master.grad is not None]
        norm = float(torch.nn.utils.clip_grad_norm_(masters, self._settings.max_grad_norm))
        if not math.isfinite(norm):
            self._weights.clear_gradients()
            raise BackendError(
                f"the gradient's norm is {norm} at optimiser step {self.steps}: lower learning_rate, or set dtype: float32 for "
                "the model; the weights are unchanged"
            )
        rate = learning_rate(self._settings, self.steps)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        torch.autograd.graph.increment_version(masters)  # the fused step does not, and caches of weights look at it
        self._weights.publish()
        self._weights.clear_gradients()
        self.steps += 1
        return {"grad_norm": norm, "learning_rate": rate}

    def tensors(self) -> dict[str, Tensor]:
        """AdamW's state as `kind/weight`, for a checkpoint; empty before the first step."""
        masters = self._weights.masters
        return {
            f"{kind}/{name}": value for name in self._names for kind, value in self._adam.state.get(masters[name], {}).items()
        }

    def load(self, tensors: dict[str, Tensor], *, steps: int) -> None:
        """Take over a saved state."""
        self.steps = steps
        masters = self._weights.masters
        self._adam.state.clear()
        for key, value in tensors.items():
            kind, name = key.split("/", 1)
            # AdamW keeps its step counts where `fused` wants them: beside the weight.
            self._adam.state[masters[name]][kind] = value.to(masters[name].device)
