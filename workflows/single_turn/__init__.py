"""One question, one answer: the workflow that needs no code."""
