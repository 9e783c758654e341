"""Backends beyond the local one; imported as `nat_finetune_plugins`."""
