"""Orders of steps: one a file."""
