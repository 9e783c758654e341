"""Requests of a household, each to be answered with one JSON tool call: a workflow, its data, and a policy to train."""
