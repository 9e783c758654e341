"""Packages of plugins as they are written by `nat-finetune new`: plain files in which a name is put."""
