"""What a run leaves for people to read."""
