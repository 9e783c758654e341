"""`nat-finetune runs`: the run folders below a directory, and what came of them."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from nat_finetune.cli.options import Json
from nat_finetune.errors import ConfigError


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="run folders, or directories that hold some")] = None,
    json: Json = False,
) -> None:
    """List and compare runs: outcome, steps, and each metric before and after, a line each."""
    reports = [report for folder in folders or [Path("runs")] for report in map(_report, run_folders(folder))]
    if json:
        print(jsonlib.dumps(reports))
        return
    if not reports:
        print("no runs found; `nat-finetune run CONFIG` makes one")
    width = max((len(name) for report in reports for name in report["metrics"]), default=0)
    for report in reports:
        print(f"{report['run_id']}: {report['exit_reason']}, {len(report['steps'])} steps")
        for name, metric in sorted(report["metrics"].items()):
            print(f"  {name:<{width}}  {_change(metric)}")


def run_folders(folder: Path) -> list[Path]:
    """The folder itself if it is a run's, else the run folders in it.

    Raises:
        ConfigError: it is no directory.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory; give the one that your runs are in (`run --output-dir`)")
    return [folder] if (folder / "run.json").is_file() else sorted(path.parent for path in folder.glob("*/run.json"))


def _report(folder: Path) -> dict[str, Any]:
    from nat_finetune.runstore import RunStore

    store = RunStore(folder)
    report: dict[str, Any] | None = store.read_json("report.json")
    if report is not None:
        return report
    outcome = "running" if store.is_running else f"unfinished: nat-finetune run --resume {folder}"
    return {"run_id": folder.name, "exit_reason": outcome, "steps": [None] * store.state().steps_done, "metrics": {}}


def _change(metric: dict[str, Any]) -> str:
    """Means before and after, and the gain with its interval."""
    means = [None if metric[side] is None else metric[side]["mean"] for side in ("before", "after")]
    change = " → ".join("unknown" if mean is None else f"{mean:.3f}" for mean in means)
    gain = metric["gain"]
    if gain is None or gain["low"] is None:
        return change
    return f"{change}  {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
