"""Preference records as they come: each file format to a context and its judged completions."""
