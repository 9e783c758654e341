"""The shipped policy `builtin:tool-calling`, written by `build_policy.py`."""
