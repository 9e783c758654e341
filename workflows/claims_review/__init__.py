"""Claims review: a planner and a writer that draft a recommendation for a reviewer, with rules that know the right answer."""
