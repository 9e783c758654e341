"""Run by TRL's own Python, never by pytest: one DPO loss and its gradients on rows that are tokens already.

    python trl_dpo.py FOLDER

FOLDER holds `policy` and `reference` (models), `rows.json` (prompt, chosen and rejected ids of each pair) and `settings.json`;
the answer is written beside them: `loss.json` and `gradients.safetensors`.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

folder = Path(sys.argv[1])
rows, settings = (json.loads((folder / name).read_text()) for name in ("rows.json", "settings.json"))
tokenizer = AutoTokenizer.from_pretrained(folder / "policy")
policy, reference = (AutoModelForCausalLM.from_pretrained(folder / name, dtype="float32") for name in ("policy", "reference"))
trainer = DPOTrainer(
    model=policy,
    ref_model=reference,
    args=DPOConfig(
        output_dir=str(folder / "trl"),
        loss_type=[settings["loss"]],
        beta=settings["beta"],
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_dropout=True,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),  # the rows below do not go through it
    processing_class=tokenizer,
)
batch = DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(rows)
trainer.model.eval()
loss = trainer.compute_loss(trainer.model, batch)
loss.backward()
gradients = {name: value.grad.contiguous() for name, value in trainer.model.named_parameters() if value.grad is not None}
(folder / "loss.json").write_text(json.dumps(loss.item()))
save_file(gradients, folder / "gradients.safetensors")
