"""`nat-finetune doctor`: what is likely to go wrong, before hours are paid for."""

from __future__ import annotations

import asyncio
import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nat_finetune.cli.options import Json, Override
from nat_finetune.errors import DoctorFound

if TYPE_CHECKING:
    from nat_finetune.checks.doctor.examine import Examination
    from nat_finetune.checks.doctor.finding import Finding


def doctor(
    config: Annotated[Path, typer.Argument(help="the YAML file", metavar="CONFIG")],
    override: Override = None,
    json: Json = False,
    deep: Annotated[
        bool,
        typer.Option("--deep/--quick", help="--quick leaves out everything that loads the model, runs the workflow or pays"),
    ] = True,
    examples: Annotated[int, typer.Option("--examples", min=1, help="examples whose rollouts are looked at")] = 4,
) -> None:
    """Look for faults before any training: each with a severity and a fix. Exit code 10 where there are errors."""
    from nat_finetune.checks.doctor.examine import examine
    from nat_finetune.checks.doctor.finding import Severity
    from nat_finetune.registry import Registry

    found = asyncio.run(examine(config, override or [], Registry.installed(), deep=deep, examples=examples))
    errors = found.count(Severity.ERROR)
    if json:
        print(_json(config, found))
    else:
        for finding in found.findings:
            print(_text(finding))
        print(f"looked at: {', '.join(found.looked_at)}")
        for area in found.left_out:
            print(f"not looked at: {area}")
        counts = ", ".join(f"{found.count(severity)} {severity}{'s'[: found.count(severity) != 1]}" for severity in Severity)
        print(f"{config}: {counts}")
    if errors:
        raise DoctorFound(f"{errors} error{'s'[: errors != 1]} in {config}: mend them before training")


def _text(finding: Finding) -> str:
    place = ":".join(str(part) for part in (finding.file, finding.line) if part is not None)
    head = ": ".join(part for part in (finding.severity.value, f"[{finding.id}]", place, finding.key) if part)
    return f"{head}\n    {finding.message}\n    fix: {finding.fix}"


def _json(config: Path, found: Examination) -> str:
    from nat_finetune.checks.doctor.finding import Severity

    counts = {severity.value: found.count(severity) for severity in Severity}
    about = {"config": str(config), "ok": not counts["error"], "counts": counts}
    findings = [asdict(finding) for finding in found.findings]
    return jsonlib.dumps({**about, "findings": findings, "looked_at": found.looked_at, "left_out": found.left_out}, indent=2)
