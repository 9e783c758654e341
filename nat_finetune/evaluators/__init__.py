"""Evaluators that ship with nat-finetune."""
