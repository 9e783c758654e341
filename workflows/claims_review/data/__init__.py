"""Claims and reviewer records, written by `make_data.py`."""
