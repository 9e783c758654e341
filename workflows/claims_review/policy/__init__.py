"""The shipped policy `builtin:claims-review`, written by `build_policy.py`."""
