"""Openings (`game_*.jsonl`) and positions (`move_*.jsonl`), written by `make_data.py`."""
