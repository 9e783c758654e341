"""Trajectory builders: one training signal a file."""
