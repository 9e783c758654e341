"""The log of pairs as a table (between markers of RESULTS.md) and as JSON.

python benchmarks/speed/results.py LOG [--results RESULTS.md] [--json results.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

PARTS = ("step", "generation", "update")
BARS = {
    ("smollm2 dpo lora", "step"): 3.2, ("smollm2 dpo full", "step"): 3.0, ("smollm2 grpo lora", "step"): 3.0,
    ("smollm2 grpo lora", "update"): 3.5, ("smollm2 grpo lora", "generation"): 2.5, ("smollm2 agent lora", "step"): 6.0,
    ("tiny dpo lora", "step"): 3.0, ("tiny grpo lora", "step"): 3.0, ("smollm2 load lora", "step"): 4.0,
}  # fmt: skip
"""What was aimed at: TRL's time divided by ours."""


def summary(log: Path) -> dict[str, Any]:
    """What the log says of each case."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")] if log.is_file() else []
    keys = list(dict.fromkeys((line["case"], line["threads"], line["steps"]) for line in lines if line["kind"] == "pair"))
    return {"cases": [_case(key, [line for line in lines if _key(line) == key]) for key in keys]}


def _key(line: dict[str, Any]) -> tuple[str, int, int]:
    return (line["case"], line["threads"], line["steps"])


def _case(key: tuple[str, int, int], lines: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [line for line in lines if line["kind"] == "pair"]
    last = {line["kind"]: line for line in lines}
    sides = [side for side in ("product", "peer") if side in pairs[0]]
    case: dict[str, Any] = {
        "case": key[0],
        "threads": key[1],
        "steps": key[2],
        "pairs": len(pairs),
        "disturbed": sum(any(pair[side]["machine"]["disturbed"] for side in sides) for pair in pairs),
    }
    for side in sides:
        case[side] = _side([pair[side] for pair in pairs], [line[side] for line in lines if line["kind"] == "ready"])
    if "peer" in case:
        case["ratios"] = {part: _ratio(pairs, part, part) for part in PARTS if part in case["product"] and part in case["peer"]}
        if "optimising" in case["product"]:
            case["ratios"]["optimising"] = _ratio(pairs, "optimising", "update")
    floors = [line for line in lines if line["kind"] == "floor"]
    if floors:
        case["floor"] = _floor(floors, case["product"])
    if "check" in last:
        case["loss_difference"] = last["check"]["difference"]
    return case


def _side(units: list[dict[str, Any]], ready: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        part: {clock: median(unit[part][clock] for unit in units) for clock in units[0][part]}
        for part in (*PARTS, "optimising")
        if part in units[0]
    }
    tokens = {name: median(unit[name] for unit in units) for name in ("sampled", "trained", "prompted") if name in units[0]}
    speed = {}
    if "sampled" in tokens and "generation" in found:
        speed["sampled_per_second"] = tokens["sampled"] / found["generation"]["wall"]
    if "trained" in tokens:
        speed["trained_per_second"] = tokens["trained"] / found["update"]["wall"]
    loading = median(line["load_seconds"] for line in ready) if ready else None
    peak = max(unit["peak_gib"] for unit in units)
    return {**found, **tokens, **speed, "peak_gib": peak, "load_seconds": loading}


def _ratio(pairs: list[dict[str, Any]], part: str, theirs_part: str) -> dict[str, float]:
    """Medians over pairs of the peer's time divided by ours, of a part of the step; on the clocks that ours has.

    Where sides sampled different numbers of tokens (the product's rows may end early), times of a step and of its parts are
    compared for each sampled token: ours are never better for having done less.
    """
    found: dict[str, float] = {}
    for clock in pairs[0]["product"][part]:
        values = []
        for pair in pairs:
            ours, theirs = pair["product"], pair["peer"]
            work = ours["sampled"] / theirs["sampled"] if "sampled" in ours and "sampled" in theirs else 1.0
            values.append(theirs[theirs_part][clock] / ours[part][clock] * min(work, 1.0))
        found[clock] = median(values)
    return found


def _floor(lines: list[dict[str, Any]], product: dict[str, Any]) -> dict[str, Any]:
    """By the best rates that were measured: a busy machine only lowers them. Of torch's own products, and of the fastest."""
    rates = {name: max(line["rates"][name] for line in lines) for name in lines[0]["rates"] if lines[0]["rates"][name]}
    need, fastest = lines[-1]["need"], max(rates["matmul"], rates.get("onednn", 0.0))
    found: dict[str, Any] = {"rates": rates}
    for key, rate in (("", rates["matmul"]), ("_fastest", fastest)):
        generation = need["prefill"] / rate + max(need["decode"] / rate, need["decode_bytes"] / rates["bandwidth"])
        update = need["update"] / rate
        seconds = {"step": generation + update, "generation": generation, "update": update}
        seconds = {part: value for part, value in seconds.items() if part in product and value}
        distance = {part: product[part]["wall"] / value for part, value in seconds.items()}
        if "update" in seconds and "optimising" in product:
            distance["optimising"] = product["optimising"]["wall"] / seconds["update"]
        found |= {f"seconds{key}": seconds, f"distance{key}": distance}
    return found


# ------------------------------------------------------------------------------------------------------------------ tables

HEAD = (
    "| work | part | nat-finetune: wall (CPU) s | TRL 1.16: wall (CPU) s | TRL ÷ ours: wall (CPU) | bar | "
    "floor, s: torch's products, the fastest | ours ÷ floor | pairs |"
)
MORE = (
    "| work | tokens/s sampled: ours, TRL | tokens/s trained | peak memory GiB: ours, TRL | model load s: ours, TRL | "
    "loss difference on an equal batch |"
)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    cases = found["cases"]
    if not cases:
        return "Nothing was measured yet: `make bench`."
    rates = [case["floor"]["rates"] for case in cases if "floor" in case]
    lines = [_setting(cases, rates), "", HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    lines += [row for case in cases for row in _rows(case)]
    lines += ["", MORE, "|" + " --- |" * (MORE.count("|") - 1), *map(_more, cases)]
    return "\n".join(lines)


def _setting(cases: list[dict[str, Any]], rates: list[dict[str, float]]) -> str:
    threads = "/".join(sorted({str(case["threads"]) for case in cases}))
    disturbed, pairs = sum(case["disturbed"] for case in cases), sum(case["pairs"] for case in cases)
    text = f"{threads} thread{'s' if threads != '1' else ''}, fp32; medians of paired ratios."
    if rates:
        best = {name: max(rate[name] for rate in rates) for name in rates[0]}
        text += (
            f" Measured here: {best['matmul'] / 1e9:,.0f} G operations/s in torch's matrix products, "
            f"{best.get('onednn', 0.0) / 1e9:,.0f} in oneDNN's, {best['bandwidth'] / 1e9:.1f} GB/s read."
        )
    quiet = (
        "The machine was quiet throughout." if not disturbed else f"**{disturbed} of {pairs} pairs were disturbed** by others."
    )
    return f"{text} {quiet}"


def _rows(case: dict[str, Any]) -> Iterable[str]:
    ours, theirs = case["product"], case.get("peer", {})
    for part in PARTS:
        if part not in ours or (part != "step" and ours[part] == ours["step"]):
            continue
        ratio = case.get("ratios", {}).get(part)
        bar = BARS.get((case["case"], part))
        floor = case.get("floor", {})
        cells = [
            case["case"] if part == "step" else "",
            part,
            _time(ours.get(part)),
            _time(theirs.get(part)),
            f"**{ratio['wall']:.2f}** ({ratio['cpu']:.2f})" if ratio else "-",
            f"{bar:g}{_met(bar, ratio)}" if bar else "",
            _both(floor, "seconds", part),
            _both(floor, "distance", part),
            f"{case['pairs']} by {case['steps']}" if part == "step" else "",
        ]
        yield f"| {' | '.join(cells)} |"
    if "optimising" in ours:
        away = _both(case.get("floor", {}), "distance", "optimising")
        ratio = case.get("ratios", {}).get("optimising")
        shown = "-" if ratio is None else _number(ratio["wall"])
        times = f"{ours['optimising']['wall']:.2f} | {_time(theirs.get('update'))} | {shown}"
        yield f"|  | update without the product's checks | {times} |  |  | {away} |  |"


def _met(bar: float, ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else (" ✓" if ratio["wall"] >= bar else " ✗")


def _more(case: dict[str, Any]) -> str:
    sides = [case[side] for side in ("product", "peer") if side in case]

    def both(name: str, form: str = ".1f") -> str:
        return ", ".join(format(side[name], form) if side.get(name) is not None else "-" for side in sides)

    difference = case.get("loss_difference")
    checked = "" if difference is None else f"{difference:.1e}"
    trained = both("trained_per_second", ",.0f").split(", ")[0]
    return (
        f"| {case['case']} | {both('sampled_per_second', ',.0f')} | {trained} | {both('peak_gib')} | {both('load_seconds')} | "
        f"{checked} |"
    )


def _time(part: dict[str, float] | None) -> str:
    return "-" if part is None else f"{part['wall']:.2f} ({part['cpu']:.2f})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _both(floor: dict[str, Any], what: str, part: str) -> str:
    """By torch's own products, and by the fastest."""
    values = [floor.get(f"{what}{key}", {}).get(part) for key in ("", "_fastest")]
    return ", ".join(_number(value) for value in values if value is not None)


def put(page: Path, name: str, text: str) -> None:
    """Put a text between the page's markers of this name; the page is made if it is not there."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = page.read_text(encoding="utf-8") if page.is_file() else f"# Results\n\n{begin}\n{end}\n"
    before, found, rest = whole.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise SystemExit(f"{page} has no lines {begin} and {end}: put them where the table belongs")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def write(log: Path, page: Path, data: Path) -> None:
    """Put the table between the page's markers and the figures beside it."""
    found = summary(log)
    put(page, "speed", table(found))
    data.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Write the tables of a log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "RESULTS.md")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("results.json"))
    given = parser.parse_args()
    write(given.log, given.results, given.json)


if __name__ == "__main__":
    main()
