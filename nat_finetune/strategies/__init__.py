"""Test-time-compute strategies: search, scoring, selection."""
