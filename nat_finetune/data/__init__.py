"""Pure data steps: events to trajectories, groups, pairs and batches."""
