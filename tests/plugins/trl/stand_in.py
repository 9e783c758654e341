"""Stands in for TRL's Python: answers the question for its versions, and does a job by adding to the weights.

The job's `overrides` say what else happens: `fail`, `hang` or `lie`. What TRL would measure at the end is in `expected.json`.
"""

import json
import sys
import time
from pathlib import Path

VERSIONS = {"trl": "1.16.0", "torch": "2.13.0", "transformers": "5.24.0", "datasets": "5.2.0", "accelerate": "1.15.0"}


def main(program, folder, prepared):
    folder, prepared = Path(folder), Path(prepared)
    told = json.loads((prepared / "job.json").read_text())
    (folder / "progress.json").write_text(json.dumps({"step": 1, "steps": 2, "last": {"loss": 0.5}}))
    print(f"{Path(program).name} begins", flush=True)
    for place in (folder, folder.parent):
        with (place / "begun").open("a") as file:
            file.write("once\n")
    if told["arguments"].get("hang"):
        time.sleep(60)
    if told["arguments"].get("fail"):
        raise ValueError("no such loss")
    from safetensors.numpy import load_file, save_file

    weights = load_file(prepared / "model" / "model.safetensors")
    (folder / "output").mkdir()
    for path in (prepared / "model").iterdir():
        if path.suffix != ".safetensors":
            (folder / "output" / path.name).write_bytes(path.read_bytes())
    moved = {name: value + value.dtype.type(0.01) for name, value in weights.items()}
    save_file(moved, folder / "output" / "model.safetensors", {"format": "pt"})
    expected = prepared / "expected.json"
    canary = json.loads(expected.read_text()) if expected.exists() else [[0.0] * len(said) for _, said in told["canary"]]
    if told["arguments"].get("lie"):
        canary[0][0] -= 1.0
    history = [{"loss": 0.7, "rewards/margins": 0.0, "step": 1}, {"loss": 0.5, "rewards/margins": 0.2}, {"train_loss": 0.6}]
    result = {"optimiser_steps": 2, "history": history, "seconds": 1.5, "canary": canary, "versions": VERSIONS}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "-c":
        print(json.dumps({name: VERSIONS.get(name) for name in sys.argv[3:]} | {"python": "3.11.7"}))
    else:
        main(*sys.argv[2:])
