"""Workflows that ship with nat-finetune; imported as `nat_finetune_workflows`."""
