"""Recording what a workflow does: rollouts as events, with the function path of each."""

from nat_finetune.tracing.record import candidate, reward, tool

__all__ = ["candidate", "reward", "tool"]
