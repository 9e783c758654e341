"""Trainer adapters: one backend a file."""
