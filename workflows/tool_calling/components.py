"""Everything that this workflow registers: the entry point `nat_finetune.components` names this module."""

from nat_finetune_workflows.tool_calling.rewards import tool_correctness, tool_exact_call, tool_format, tool_length
from nat_finetune_workflows.tool_calling.workflow import tool_call, tool_calling

__all__ = ["tool_call", "tool_calling", "tool_correctness", "tool_exact_call", "tool_format", "tool_length"]
