"""Run by TRL's own Python, never by pytest: its DPOTrainer takes an exported folder as it is and trains on it.

python trl_data.py EXPORT MODEL OUT.json
"""

import json
import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

export, model, out = sys.argv[1:]
data = load_dataset(export)
tokenizer = AutoTokenizer.from_pretrained(model)
trainer = DPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
    args=DPOConfig(
        output_dir=out + ".trl",
        max_steps=2,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=data["train"],
    eval_dataset=data["validation"],
    processing_class=tokenizer,
)
trained = trainer.train()
first = trainer.train_dataset[0]
found = {
    "columns": data["train"].column_names,
    "rows": {side: len(rows) for side, rows in data.items()},
    "loss": trained.training_loss,
    "eval_loss": trainer.evaluate()["eval_loss"],
    "prompt": tokenizer.decode(first["prompt_ids"]),
    "chosen": tokenizer.decode(first["chosen_ids"]),
    "rejected": tokenizer.decode(first["rejected_ids"]),
}
with open(out, "w", encoding="utf-8") as file:
    json.dump(found, file)
