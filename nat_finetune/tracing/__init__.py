"""Recording what a workflow does."""
