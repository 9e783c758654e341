"""The shipped policy `builtin:tic-tac-toe`, written by `build_policy.py`."""
