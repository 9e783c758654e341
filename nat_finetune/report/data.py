"""`report.json`: everything that the report says, put together from what the run folder holds."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nat_finetune import __version__
from nat_finetune.compose import target_of
from nat_finetune.config.fit import resolved_algorithm
from nat_finetune.config.load import LoadedConfig
from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.intervals import paired_gain
from nat_finetune.data.ledger import Ledger
from nat_finetune.data.seeds import derive_seed
from nat_finetune.report.audit import audit
from nat_finetune.report.backend import backend_part
from nat_finetune.report.diagnosis import plateaus
from nat_finetune.report.examples import example_rollouts
from nat_finetune.report.learner import agreement_of
from nat_finetune.report.metrics import by_reason
from nat_finetune.report.power import power_sentence
from nat_finetune.report.preferences import preferences_account, unknown_pairs
from nat_finetune.report.segments import segments_account
from nat_finetune.runstore import RunState, RunStore
from nat_finetune.steps.best import describe_choice, validated
from nat_finetune.types import Estimate, EvalResult


def build_report(
    loaded: LoadedConfig, store: RunStore, *, exit_code: int, reason: str | None, message: str | None
) -> dict[str, Any]:
    """The report of a run that ended, well or not, as JSON-able data (docs/run-folder.md)."""
    config, state = loaded.config, store.state()
    target = target_of(config)
    before, after = store.evaluation("test-before"), store.evaluation("test-after")
    about = store.read_json("run.json") or {}
    data = store.read_json("data.json") or {}
    calibration = (store.read_json("calibration.json") or {}).get("sentence")
    metrics = compare(before, after, data.get("references", {}), config.finetuning.seed, config.finetuning.confidence)
    steps = [{**line, "agreement": agreement_of(line)} for line in store.metrics.lines()]
    primary = next((name for name in target.reward_names if name in metrics), next(iter(metrics), None))
    updated = sum(1 for step in steps if step.get("update"))
    never_began = state.ended if not updated else None
    outcome = reason or never_began or exit_reason(metrics.get(primary or ""))
    findings = audit(steps, target.reward_names, held_out_gains(store, config.finetuning, metrics))
    told = message or state.unmeasured
    sentence = headline(primary, metrics.get(primary or ""), outcome, told, confidence=config.finetuning.confidence)
    return {
        "nat_finetune": __version__,
        "run_id": store.folder.name,
        "config_name": loaded.path.stem,
        "method": config.finetuning.trajectory_builder,
        "started": about.get("started"),
        "exit_code": exit_code,
        "exit_reason": outcome,
        "message": message,
        "headline": sentence,
        "primary_metric": primary,
        "confidence": config.finetuning.confidence,
        "seconds": {**state.seconds, "total": sum(state.seconds.values()) or None},
        "policy": {**_NO_POLICY, **(store.read_json("policy.json") or {}), "llm": target.llm, "versions": updated},
        "algorithm": resolved_algorithm(config),
        "target": {"functions": list(target.functions), "llm": target.llm, "reward": list(target.reward_names)},
        "data": {**data.get("sets", {}), **{name: data.get(name, nothing) for name, nothing in _NO_DATA.items()}},
        "metrics": metrics,
        "steps": steps,
        "validations": validations(store),
        "checkpoint": describe_choice(store, config.finetuning),
        "backend": backend_part(store),
        "ledger": ledger_table(_whole_ledger(store, state)),
        "dropped": by_reason(_sum_drops(steps, data.get("dropped", []))),
        "account": [*account(steps, metrics), *unknown_pairs(after or before), *([calibration] if calibration else [])],
        "audit": [asdict(finding) for finding in findings],
        "warnings": [*state.warnings, *plateaus(steps, target.reward_names, data.get("best", {}))],
        "examples": example_rollouts(store, target, last_step=state.steps_done - 1),
        "environment": environment(about),
        "metadata": dict(config.metadata),
        "config_text": (store.folder / "config.yml").read_text(encoding="utf-8"),
    }


def compare(
    before: EvalResult | None,
    after: EvalResult | None,
    references: Mapping[str, Mapping[str, float]],
    seed: int,
    confidence: float,
) -> dict[str, dict[str, Any]]:
    """before, after and gain of each metric, the gain paired by example; what is missing is None."""
    measured = after if after is not None else before
    names = list(measured.metrics) if measured is not None else []
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        gain: Estimate | None = None
        if before is not None and after is not None:
            gain = paired_gain(
                before.scores[name],
                after.scores[name],
                after.clusters,
                seed=derive_seed(seed, "gain", name),
                confidence=confidence,
            )
        rows[name] = {
            "before": _estimate(before.metrics[name] if before else None),
            "after": _estimate(after.metrics[name] if after else None),
            "gain": _estimate(gain),
            "reference": dict(references.get(name, {})),
        }
    return rows


def exit_reason(metric: Mapping[str, Any] | None) -> str:
    """What the test set says of the run: improved, no significant gain, worse, or not measured."""
    gain = metric["gain"] if metric else None
    if gain is None or gain["low"] is None or gain["high"] is None:
        return "not measured"
    if gain["low"] > 0:
        return "improved"
    return "worse" if gain["high"] < 0 else "no significant gain"


def held_out_gains(store: RunStore, config: FinetuningConfig, metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For the audit: what each metric gained since before training, on the test set, and on the validation set at the end."""
    gains = {f"{name} on the test set": {"name": name, **row["gain"]} for name, row in metrics.items() if row["gain"]}
    points = validated(store)
    if len(points) < 2 or points[0].steps_done != 0:
        return gains
    lower_is_better = config.validation.select if config.validation and config.validation.mode == "min" else None
    first, last = points[0].result, points[-1].result
    for name in last.metrics:
        seed = derive_seed(config.seed, "validation gain", name)
        gain = _estimate(
            paired_gain(first.scores[name], last.scores[name], last.clusters, seed=seed, confidence=config.confidence)
        )
        if gain is not None and name != lower_is_better:
            gains[f"{name} on the validation set"] = {"name": name, **gain}
    return gains


def headline(
    name: str | None, metric: Mapping[str, Any] | None, outcome: str, message: str | None, *, confidence: float = 0.95
) -> str:
    """The run in one sentence; where no gain shows, also how many test tasks would show one of this size."""
    if message is not None:
        return f"{outcome}: {message.splitlines()[0]}"
    gain = metric["gain"] if metric else None
    if name is None or metric is None or gain is None:
        return f"{outcome}: no test set compares the policy before and after"
    if gain["mean"] is None or gain["low"] is None:
        return f"{outcome}: {name} is known before and after on {gain['n']} held-out tasks, too few to tell a gain"
    return (
        f"{outcome}: {name} {metric['before']['mean']:.3f} → {metric['after']['mean']:.3f}, gain {gain['mean']:+.3f} "
        f"[{gain['low']:+.3f}, {gain['high']:+.3f}] on {gain['n']} held-out tasks"
        + (f"; {power}" if (power := power_sentence(gain, confidence=confidence)) else "")
    )


def validations(store: RunStore) -> list[dict[str, Any]]:
    """The validation curve."""
    return [
        {
            "step": point.steps_done,
            "policy_version": point.result.policy.version if point.result.policy else None,
            "metrics": {name: _estimate(estimate) for name, estimate in point.result.metrics.items()},
        }
        for point in validated(store)
    ]


def _whole_ledger(store: RunStore, state: RunState) -> dict[str, Any]:
    """The ledger of the steps that were committed, and what was spent on the one after them."""
    ledger = Ledger.from_dict(state.ledger)
    ledger.add_unfinished(rollout for _, rollout in store.rollouts(state.events_offset) if rollout is not None)
    return ledger.to_dict()


def ledger_table(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Calls and tokens by bucket and reason, with each row's share of all tokens: the shares sum to 1."""
    rows = list(ledger.get("rows", []))
    calls, tokens = sum(row["calls"] for row in rows), sum(row["tokens"] for row in rows)
    return {
        "calls": calls,
        "tokens": tokens,
        "rows": [{**row, "share": row["tokens"] / tokens if tokens else None} for row in rows],
    }


def account(steps: list[dict[str, Any]], metrics: Mapping[str, Any]) -> list[str]:
    """What the data was, in sentences."""
    lines = []
    rollouts = sum(step["rollouts"] for step in steps)
    records = [step["records"] for step in steps if step.get("records")]
    for read in records:
        lines.append(
            f"{read['read']:,} records were read; the workflow was not run to train, and no model call is in the ledger"
        )
        lines += read["notes"]
        if read.get("pairs"):
            held_out = "{validation:,} are held out for validation and {test:,} for the test".format(**read["pairs"])
            lines.append(f"of their pairs {read['pairs']['train']:,} are for training; {held_out}, and never trained on")
    if steps and not records:
        failed = sum(step["failed"]["infrastructure"] for step in steps)
        lines.append(
            f"{rollouts:,} rollouts in {len(steps):,} steps; {failed:,} failed through no fault of the policy and were left out"
        )
        skipped = sum(1 for step in steps if not step.get("update"))
        if skipped:
            lines.append(f"{skipped:,} steps had nothing to train on and made no update")
        lines += segments_account(steps)
        lines += preferences_account(steps)
    extra = [step["dynamic_sampling"] for step in steps if step.get("dynamic_sampling")]
    if extra:
        tried, groups = (sum(line[key] for line in extra) for key in ("extra_examples", "extra_groups"))
        lines.append(
            f"dynamic sampling ran {tried:,} further examples in place of flat groups, {groups:,} of them gave a group"
        )
    unknown = [name for name, row in metrics.items() if row["after"] and row["after"]["mean"] is None]
    lines += [f"{name} is unknown on every test example" for name in unknown]
    return lines


def environment(about: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, platform and commit, as they were when the run began."""
    return dict(about.get("environment", {}))


def describe_environment(seed: int) -> dict[str, Any]:
    """Versions, platform and the commit of the working directory, for `run.json`."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in ("nat-finetune", "torch", "transformers", "peft", "pydantic")},
        "git": _git(),
        "seed": seed,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=False, cwd=Path.cwd())
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "dirty": bool(ask("status", "--porcelain"))}


_NO_DATA: Mapping[str, Any] = {"notes": [], "leaks": [], "pairs": {}}
_NO_POLICY = {"source": None, "parameters": None, "trained_parameters": None, "device": None, "dtype": None}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def _sum_drops(steps: list[dict[str, Any]], before: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Counts by `what/reason`: what was dropped before the first step, and in each."""
    total = dict(Counter(f"{drop['what']}/{drop['reason']}" for drop in before))
    for step in steps:
        for key, count in step.get("dropped", {}).items():
            total[key] = total.get(key, 0) + count
    return total
