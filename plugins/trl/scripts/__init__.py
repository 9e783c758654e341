"""Programs that TRL's own Python runs: copied into a job's folder as they are, so that what ran stays readable there."""
