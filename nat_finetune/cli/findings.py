"""Problems of configs in the forms that CI systems read: SARIF, GitHub's annotations, JUnit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from nat_finetune import __version__
from nat_finetune.errors import Problem

RULE = "config"
Findings = Mapping[str, Sequence[Problem]]
"""Config file to its problems, none where it is right."""


def sarif(findings: Findings) -> str:
    """A SARIF 2.1.0 log, as code-scanning services take it."""
    results = [_result(problem, path) for path, problems in findings.items() for problem in problems]
    rules = [{"id": RULE, "shortDescription": {"text": "a nat-finetune config that can't be right"}}]
    driver = {"name": "nat-finetune", "version": __version__, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(log, indent=2)


def _result(problem: Problem, path: str) -> dict[str, object]:
    location: dict[str, object] = {"artifactLocation": {"uri": _file(problem, path)}}
    if problem.line is not None:
        location["region"] = {"startLine": problem.line, "startColumn": problem.column or 1}
    return {
        "ruleId": RULE,
        "level": "error",
        "message": {"text": _text(problem)},
        "locations": [{"physicalLocation": location}],
    }


def github(findings: Findings) -> str:
    """GitHub's workflow commands: an annotation at the line of each problem."""
    return "\n".join(_annotation(problem, path) for path, problems in findings.items() for problem in problems)


def _annotation(problem: Problem, path: str) -> str:
    at = {"file": _file(problem, path), "line": problem.line, "col": problem.column, "title": problem.key or "nat-finetune"}
    properties = ",".join(f"{name}={_escaped(str(value), also=',:')}" for name, value in at.items() if value is not None)
    return f"::error {properties}::{_escaped(_text(problem))}"


def _escaped(text: str, also: str = "") -> str:
    """Per cent signs and line breaks, and in properties commas and colons, would end the command."""
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def junit(findings: Findings) -> str:
    """A JUnit report: a config is a test case."""
    failed = sum(1 for problems in findings.values() if problems)
    suite = ElementTree.Element(
        "testsuite", name="nat-finetune validate", tests=str(len(findings)), failures=str(failed), errors="0", skipped="0"
    )
    for path, problems in findings.items():
        case = ElementTree.SubElement(suite, "testcase", classname="config", name=path)
        if problems:
            failure = ElementTree.SubElement(
                case, "failure", message=f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
            )
            failure.text = "\n".join(str(problem) for problem in problems)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _file(problem: Problem, path: str) -> str:
    """The file to point at: a problem of an override, or of the whole config, stands at the config."""
    return problem.file if problem.file is not None and problem.line is not None else path


def _text(problem: Problem) -> str:
    """The problem without its place, which stands elsewhere."""
    return str(Problem(problem.message, key=problem.key, hint=problem.hint))
