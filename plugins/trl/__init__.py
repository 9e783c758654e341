"""TRL as a backend: DPO, SFT, GRPO and GDPO by the field's own trainer, in a Python environment of its own."""
