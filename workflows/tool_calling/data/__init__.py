"""Requests (`train.jsonl`, `validation.jsonl`, `test.jsonl`), written by `make_data.py`."""
