"""The local backend: one set of weights for rollouts and training."""
