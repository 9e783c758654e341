"""`nat-finetune gate`: may the model of a run be promoted?"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nat_finetune.cli.options import Json, RunFolder, finite
from nat_finetune.errors import ConfigError, GateFailed
from nat_finetune.whole_file import write_whole

if TYPE_CHECKING:
    from nat_finetune.checks.gate import GateVerdict


def gate(
    run: RunFolder,
    metric: Annotated[
        str | None, typer.Option("--metric", help="of the test set; left out: the run's primary one", show_default=False)
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="a run to beat; left out: the run's own base model", show_default=False)
    ] = None,
    min_gain: Annotated[
        float, typer.Option("--min-gain", help="the gain's lower bound must be above this", callback=finite)
    ] = 0.0,
    min_value: Annotated[
        float | None,
        typer.Option("--min-value", help="the metric's lower bound must reach this", show_default=False, callback=finite),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="level of the intervals")] = 0.95,
    junit: Annotated[Path | None, typer.Option("--junit", help="write a JUnit report here", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Test, paired by held-out example, whether a trained model may be promoted; exit code 9 where it may not."""
    from nat_finetune.checks.gate import GateRule, judge

    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"--confidence must be between 0 and 1, found {confidence:g}")
    verdict = judge(run, baseline, GateRule(metric, min_gain, min_value, confidence))
    if junit is not None:
        _write(junit, verdict)
    if json:
        print(jsonlib.dumps(_plain(verdict)))
    else:
        _print(verdict)
    if not verdict.passed:
        raise GateFailed("; ".join(verdict.failures))


def _print(verdict: GateVerdict) -> None:
    from nat_finetune.checks.gate import shown

    rule = verdict.rule
    print(f"{rule.metric} of {verdict.run}: {shown(verdict.value)}")
    print(f"gain over {verdict.baseline}: {shown(verdict.gain, signed=True)}, {rule.confidence:.0%} intervals")
    print("gate: passed" if verdict.passed else "gate: failed")


def _plain(verdict: GateVerdict) -> dict[str, Any]:
    from dataclasses import asdict

    return {"passed": verdict.passed, **asdict(verdict)}


def _write(path: Path, verdict: GateVerdict) -> None:
    """One suite with one case, as CI systems show it."""
    from xml.etree import ElementTree

    suite = ElementTree.Element(
        "testsuite", name="nat-finetune gate", tests="1", failures=str(int(not verdict.passed)), errors="0", skipped="0"
    )
    case = ElementTree.SubElement(suite, "testcase", classname=f"gate.{verdict.run}", name=str(verdict.rule.metric))
    for failure in verdict.failures:
        ElementTree.SubElement(case, "failure", message=failure)
    write_whole(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
