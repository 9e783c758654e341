"""Training data as the files that other trainers read."""
