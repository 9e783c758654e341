"""What is asked around a run: does the config still mean the same, does it hold together, may its model be promoted."""
