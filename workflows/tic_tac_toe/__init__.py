"""Tic-tac-toe against a random opponent: a workflow with an exact solver, its data, and a policy to train."""
