"""Everything that this workflow registers: the entry point `nat_finetune.components` names this module."""

from nat_finetune_workflows.claims_review.functions import claims_explain, claims_plan
from nat_finetune_workflows.claims_review.rewards import claims_draft_score, claims_plan_score
from nat_finetune_workflows.claims_review.workflow import claims_review

__all__ = ["claims_draft_score", "claims_explain", "claims_plan", "claims_plan_score", "claims_review"]
