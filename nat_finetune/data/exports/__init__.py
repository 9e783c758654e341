"""Trainable items as the files of other trainers: their formats, which items are written, and on which side."""
