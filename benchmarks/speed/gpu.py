"""The product on a CUDA device: bf16, models with random weights in the shapes of a 0.5B and a 7B model: `make bench-gpu`.

    python benchmarks/speed/gpu.py [--time-limit 560] [--output gpu.json] [--shapes 0.5b,7b] [--dry-run]

Of each: a GRPO step of 32 prompts by 8 completions (LoRA, and all weights of the smaller model), a DPO step of 32 pairs, and 64
conversations under way at once; tokens a second, and the share of the measured ceilings of matrix products and memory. With
BENCH_TRL_PYTHON TRL does the GRPO and DPO steps of the smaller model in alternation. It ends before the time limit; `--dry-run`
does the same with shrunken shapes on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protocol import Job
from sides import OutOfTime, SideProcess
from workload import make_work, save_tokenizer

SHAPES: dict[str, dict[str, int]] = {
    "0.5b": {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936,
    },
    "7b": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064,
    },
    "dry": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1024,
    },
}  # fmt: skip
"""Of Qwen2.5's dense models; what they would say does not matter here."""
UNITS = 3
"""Of each case; the first one, which captures graphs and fills caches, does not count."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs."""

    device: str
    dtype: str
    threads: int


def make_model(folder: Path, shape: dict[str, int], place: Place) -> None:
    """A Llama with random weights, written shard by shard."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(max_position_embeddings=4096, tie_word_embeddings=False, **shape, **ids)
    save_tokenizer(folder)
    with torch.random.fork_rng(devices=[]), torch.device(place.device):
        torch.manual_seed(0)
        model = LlamaForCausalLM._from_config(config, dtype=getattr(torch, place.dtype))
    model.save_pretrained(folder)


def work_file(folder: Path, name: str, *, dry: bool) -> Path:
    """The benchmark's work, repeated until it is enough for a GPU."""
    from transformers import AutoTokenizer

    work, times = make_work(AutoTokenizer.from_pretrained(folder)), 1 if dry else 4
    work["grpo"] = work["grpo"] * times
    work["load"] = work["load"] * (1 if dry else 2)
    path = folder.parent / f"work-{name}.json"
    path.write_text(json.dumps(work))
    return path


def jobs(shape: str, folder: Path, file: Path, place: Place) -> Iterator[Job]:
    """What is measured of a model, the most important first."""
    full = () if shape == "7b" else ("full",)
    for mode in ("lora", *full):
        for work in ("grpo", "dpo", "load", "agent") if mode == "lora" else ("grpo",):
            steps = 8 if work == "dpo" else 1
            common = {"steps": steps, "units": UNITS, "threads": place.threads, "work_file": str(file)}
            yield Job(work, str(folder), mode, device=place.device, dtype=place.dtype, **common)


def measure(job: Job, folder: Path, until: float, peer: str | None) -> dict[str, Any]:
    """Units of a job by ours, and by the peer where there is one."""
    import floor

    started = {"product": (sys.executable, "product.py")} | ({"peer": (peer, "peer.py")} if peer else {})
    sides: dict[str, SideProcess] = {}
    units: dict[str, list[dict[str, Any]]] = {side: [] for side in started}
    try:
        about = {}
        for side, (python, script) in started.items():
            sides[side] = SideProcess(python, script, job, folder / f"{side}.json", folder / f"{side}.log")
            about[side] = sides[side].ready(until)
        for _ in range(UNITS):
            for side, process in sides.items():
                units[side].append(process.unit(until))
    finally:
        for process in sides.values():
            process.close()
    best = {side: min(done[1:], key=lambda unit: unit["step"]["wall"]) for side, done in units.items()}
    found: dict[str, Any] = {"ready": about, **best}
    return found | {"share": shares(best["product"], floor.need(job), job)}


def shares(unit: dict[str, Any], need: Any, job: Job) -> dict[str, float]:
    """Operations and bytes a second that the work needs, over the ceilings; tokens a second."""
    found = {}
    if "update" in unit:
        found["update_operations_per_second"] = need.update / unit["optimising"]["wall"]
        found["trained_per_second"] = unit["trained"] / unit["update"]["wall"]
    if "generation" in unit:
        seconds = unit["generation"]["wall"]
        found["generation_operations_per_second"] = (need.prefill + need.decode) / seconds
        found["generation_bytes_per_second"] = need.decode_bytes / seconds
        found["sampled_per_second"] = unit["sampled"] / seconds
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    rates = found["rates"]
    lines = [
        f"{found['device']}, {found['dtype']}: {rates['matmul'] / 1e12:,.1f} T operations/s in matrix products, "
        f"{rates['bandwidth'] / 1e9:,.0f} GB/s read.",
        "",
        "| model | work | step, s | sampled/s | trained/s | update, of matmul | generation, of bandwidth | TRL ÷ ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in found["cases"]:
        share, ratio = case["share"], ""
        if "peer" in case:
            ratio = f"{case['peer']['step']['wall'] / case['product']['step']['wall']:.2f}"
        cells = [
            case["model"],
            f"{case['work']} {case['mode']}",
            f"{case['product']['step']['wall']:.2f}",
            _figure(share.get("sampled_per_second"), ",.0f"),
            _figure(share.get("trained_per_second"), ",.0f"),
            _figure(share.get("update_operations_per_second"), ".1%", rates["matmul"]),
            _figure(share.get("generation_bytes_per_second"), ".1%", rates["bandwidth"]),
            ratio,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines + [f"- {text}" for text in found["left_out"]])


def _figure(value: float | None, form: str, of: float = 1.0) -> str:
    return "" if value is None else format(value / of, form)


def run(shapes: list[str], place: Place, until: float, peer: str | None) -> dict[str, Any]:
    """Everything that fits into the time."""
    import floor

    rates = asdict(floor.measure(device=place.device, dtype=place.dtype, threads=place.threads, seconds=1.0))
    found: dict[str, Any] = {"device": device_name(place), "dtype": place.dtype, "rates": rates, "cases": [], "left_out": []}
    for shape in shapes:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            make_model(folder / "model", SHAPES[shape], place)
            file = work_file(folder / "model", shape, dry=shape == "dry")
            for job in jobs(shape, folder / "model", file, place):
                name = {"model": shape, "work": job.work, "mode": job.mode}
                beside = peer if shape != "7b" and job.work in ("grpo", "dpo") else None
                try:
                    found["cases"].append(name | measure(job, folder, until, beside))
                except (OutOfTime, SystemExit) as end:
                    found["left_out"].append(f"{shape} {job.work} {job.mode}: {end}")
                print(json.dumps((found["cases"] or [{}])[-1].get("share")), flush=True)
    return found


def device_name(place: Place) -> str:
    """What the device calls itself."""
    import torch

    return torch.cuda.get_device_name() if place.device == "cuda" else f"CPU, {place.threads} threads"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=560.0, help="seconds")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / ".cache" / "bench" / "gpu.json")
    parser.add_argument("--shapes", default="0.5b,7b")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--peer", default=os.environ.get("BENCH_TRL_PYTHON"))
    given = parser.parse_args()
    import torch

    until = time.monotonic() + given.time_limit
    if not given.dry_run and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; `--dry-run` tries the script on the CPU, `make bench` measures there")
    place = Place("cpu", "float32", 1) if given.dry_run else Place("cuda", "bfloat16", os.cpu_count() or 1)
    found = run(["dry"] if given.dry_run else given.shapes.split(","), place, until, given.peer)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
