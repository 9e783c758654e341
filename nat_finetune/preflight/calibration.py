"""Is the reward what people want? Known answers before the first step, and reviewers' verdicts where there are some."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nat_finetune.config.signal import CalibrationConfig
from nat_finetune.data.keys import example_key
from nat_finetune.data.known_answers import GIVEN, GOLD, REPEATS, Findings, KnownAnswer, corrupted, judge
from nat_finetune.data.rewards import paid_rewards, weighted_sum
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.verdicts import Agreement, Rated, Verdict, agreement, read_verdict
from nat_finetune.datasets.rows import BadRow, Counts, jsonl
from nat_finetune.errors import DataError, Stage, StageError, boundary
from nat_finetune.interfaces import Evaluator, GroupEvaluator, KnowingEvaluator
from nat_finetune.rollout_service import as_reward
from nat_finetune.runstore import RunStore
from nat_finetune.types import Example, Rollout, Target

EXPLOITED = 20
"""Rollouts of which exploits are made."""
FEW = 30
"""Verdicts below which the agreement says little."""


def best_total(target: Target, best: Mapping[str, float]) -> float | None:
    """The most that the one reward can pay; None for several, whose best may exclude one another."""
    if len(target.rewards) != 1 or target.rewards[0].condition is not None or target.rewards[0].name not in best:
        return None
    return target.rewards[0].weight * best[target.rewards[0].name]


@dataclass(frozen=True, slots=True)
class Reward:
    """What is trained, as a function of one rollout."""

    target: Target
    evaluators: Mapping[str, Evaluator]
    timeout_seconds: float | None

    async def of(self, example: Example, rollouts: Sequence[Rollout]) -> list[tuple[float | None, str | None]]:
        """The weighted sum of the trained rewards of each rollout, or why it is unknown."""
        columns: dict[str, list[float | None]] = {}
        reasons: list[list[str | None]] = []
        for name, evaluator in self.evaluators.items():
            columns[name], why = await self._scores(evaluator, example, rollouts)
            reasons.append(why)
        values: list[tuple[float | None, str | None]] = []
        for index in range(len(rollouts)):
            scores = {name: column[index] for name, column in columns.items()}
            whole = weighted_sum(paid_rewards(scores, self.target.rewards), self.target.rewards)
            found = [column[index] for column in reasons]
            values.append((whole, next((why for why in found if why is not None), None)))
        return values

    async def _scores(
        self, evaluator: Evaluator, example: Example, rollouts: Sequence[Rollout]
    ) -> tuple[list[float | None], list[str | None]]:
        if isinstance(evaluator, GroupEvaluator):
            try:
                with boundary(Stage.EVALUATOR):
                    async with asyncio.timeout(self.timeout_seconds):
                        return [as_reward(s) for s in await evaluator.evaluate_group(example, rollouts)], [None] * len(rollouts)
            except StageError as error:
                return [None] * len(rollouts), [f"{error.error_type}: {error}"] * len(rollouts)
        pairs = [await self._score(evaluator, example, rollout) for rollout in rollouts]
        return [score for score, _ in pairs], [why for _, why in pairs]

    async def _score(self, evaluator: Evaluator, example: Example, rollout: Rollout) -> tuple[float | None, str | None]:
        try:
            with boundary(Stage.EVALUATOR):
                async with asyncio.timeout(self.timeout_seconds):
                    return as_reward(await evaluator(example, rollout)), None
        except StageError as error:
            return None, f"{error.error_type}: {error}"


# ---------------------------------------------------------------------------------------------------------- known answers


async def check_known_answers(
    reward: Reward, examples: Sequence[Example], settings: CalibrationConfig, best: float | None, seed: int
) -> Findings:
    """Score gold and bad answers of some examples; the evaluator's own (`KnowingEvaluator`), else the dataset's.

    Raises:
        DataError: no example has the column of bad answers.
    """
    column = settings.bad_answers
    if column is not None and examples and not any(column in example.metadata for example in examples):
        there = ", ".join(sorted({name for example in examples for name in example.metadata})) or "none"
        raise DataError(f"finetuning.calibration.bad_answers: no example has the column {column!r}; further columns: {there}")
    order = list(examples)
    random.Random(derive_seed(seed, "known answers")).shuffle(order)
    answers: list[KnownAnswer] = []
    taken = 0
    for index, example in enumerate(order):
        known = _known_answers(reward, example, order[index - 1], settings)
        if not any(answer.kind == GOLD for answer in known):
            continue
        if taken == settings.examples:
            break
        taken += 1
        values = await reward.of(example, [rollout_of(example, a.output, f"known-{n}") for n, a in enumerate(known)])
        answers += [replace(a, reward=value, why=why) for a, (value, why) in zip(known, values, strict=True)]
    return judge(answers, best)


def _known_answers(reward: Reward, example: Example, other: Example, settings: CalibrationConfig) -> list[KnownAnswer]:
    given = example.metadata.get(settings.bad_answers, ()) if settings.bad_answers is not None else ()
    bad = [(GIVEN, output) for output in (given if isinstance(given, list | tuple) else [given])]
    for evaluator in reward.evaluators.values():
        if isinstance(evaluator, KnowingEvaluator):
            known = evaluator.known_outputs(example)
            made = [(GOLD, output) for output in known.gold[:1]] + [(GIVEN, output) for output in known.bad] + bad
            return [KnownAnswer(kind, example.id, output) for kind, output in made]
    if example.target is None:
        return []
    wrong = other.target if other.target != example.target else None
    made = [(GOLD, example.target), *bad, *corrupted(example.target, wrong)]
    return [KnownAnswer(kind, example.id, output) for kind, output in made]


def rollout_of(example: Example, output: Any, name: str) -> Rollout:
    """A rollout that came to this output, without any events."""
    return Rollout(name, example.id, 0, 0, (), output=output)


# --------------------------------------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True, slots=True)
class Exploit:
    """A cheap answer, and what it earns."""

    name: str
    mean: float
    tried: int


@dataclass(frozen=True, slots=True)
class VerdictCheck:
    """The reward against reviewers."""

    verdicts: int
    scored: int
    agreement: Agreement
    repeated_equal: float
    """Share of the rollouts that score the same when they are scored again."""
    largest_change: float
    exploits: tuple[Exploit, ...]
    """The one that earns most first."""
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def read_verdicts(path: Path) -> list[Verdict]:
    """All lines of a verdicts file.

    Raises:
        DataError: it is missing or empty, or a line is no verdict.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected a JSONL file of verdicts, found {'a folder' if path.exists() else 'no such file'}")
    verdicts = []
    for row in jsonl(path, Counts()):
        if isinstance(row, BadRow):
            raise row.error(path)
        verdicts.append(read_verdict(row.values, f"{path}:{row.line}"))
    if not verdicts:
        raise DataError(f"{path}: there is no verdict in it")
    return verdicts


async def check_verdicts(
    reward: Reward,
    verdicts: Sequence[Verdict],
    examples: Sequence[Example],
    rollouts: Mapping[str, Rollout],
    *,
    min_agreement: float,
    seed: int,
    confidence: float,
) -> VerdictCheck:
    """Score what reviewers judged, twice, and what would be cheap.

    Raises:
        DataError: a verdict names an example or rollout that there is not, or all verdicts are alike.
    """
    by_key = {example_key(example.id): example for example in examples}
    judged = [(v, _example(v, by_key), _judged(v, by_key, rollouts)) for v in verdicts]
    first = [(await reward.of(example, [rollout]))[0] for _, example, rollout in judged]
    second = [(await reward.of(example, [rollout]))[0] for _, example, rollout in judged]
    rated = [Rated(v.example_id, v.grade, s) for (v, _, _), (s, _) in zip(judged, first, strict=True) if s is not None]
    if not rated:
        raise DataError(f"no judged rollout could be scored: {first[0][1] or 'the evaluator says None'}")
    found = agreement(rated, seed=derive_seed(seed, "verdicts"), confidence=confidence)
    changes = [abs(a - b) for (a, _), (b, _) in zip(first, second, strict=True) if a is not None and b is not None]
    exploits = await _exploits(reward, judged)
    notes = [f"{len(judged) - len(rated)} of {len(judged)} judged rollouts got no score"] if len(rated) < len(judged) else []
    if len(rated) < FEW:
        notes.append(f"{len(rated)} verdicts say little: some 50 make an interval that can be used")
    if not exploits:
        notes.append("exploits were not tried: the outputs are no texts")
    return VerdictCheck(
        verdicts=len(judged),
        scored=len(rated),
        agreement=found,
        repeated_equal=fmean(change == 0 for change in changes) if changes else 0.0,
        largest_change=max(changes, default=0.0),
        exploits=exploits,
        problems=tuple(_objections(found, exploits, min_agreement)),
        notes=tuple(notes),
    )


def _objections(found: Agreement, exploits: Sequence[Exploit], least: float) -> list[str]:
    mean, low = found.concordance.mean or 0.0, found.concordance.low
    said = []
    if mean < least:
        said.append(f"agreement {mean:.2f} is below min_agreement = {least:g}: the reward disagrees with the reviewers")
    elif low is None or low <= 0.5:
        said.append(f"agreement {mean:.2f} can't be told from chance (0.5) with so few verdicts: add some")
    if exploits and found.approved is not None and exploits[0].mean >= found.approved:
        cheap = exploits[0]
        said.append(f"the exploit '{cheap.name}' earns {cheap.mean:.3g}, approved rollouts earn {found.approved:.3g}")
    return said


async def _exploits(reward: Reward, judged: Sequence[tuple[Verdict, Example, Rollout]]) -> tuple[Exploit, ...]:
    """What cheap answers earn, made of the rollouts that reviewers liked least."""
    lowest = min(verdict.grade for verdict, _, _ in judged)
    rejected = [(e, r) for v, e, r in judged if v.grade == lowest and isinstance(r.output, str)][:EXPLOITED]
    earned: dict[str, list[float]] = {}
    for example, rollout in rejected:
        for name, output in _cheap(example, str(rollout.output)):
            value, _ = (await reward.of(example, [replace(rollout, output=output)]))[0]
            if value is not None:
                earned.setdefault(name, []).append(value)
    made = [Exploit(name, fmean(values), len(values)) for name, values in earned.items()]
    return tuple(sorted(made, key=lambda exploit: -exploit.mean))


def _cheap(example: Example, rejected: str) -> list[tuple[str, str]]:
    filler = " Further considerations support this in every respect."
    return [
        ("empty answer", ""),
        ("copied prompt", str(example.input)),
        ("repetition of a rejected answer", " ".join([rejected] * REPEATS)),
        ("length: a rejected answer with filler", rejected + filler * REPEATS),
    ]


def _example(verdict: Verdict, by_key: Mapping[str, Example]) -> Example:
    example = by_key.get(example_key(verdict.example_id))
    if example is None:
        raise DataError(
            f"{verdict.place}: no dataset of the config has an example {verdict.example_id!r} (ids keep their type)"
        )
    return example


def _judged(verdict: Verdict, by_key: Mapping[str, Example], rollouts: Mapping[str, Rollout]) -> Rollout:
    if verdict.rollout_id is None:
        return rollout_of(_example(verdict, by_key), verdict.output, f"verdict-{verdict.place}")
    if verdict.rollout_id not in rollouts:
        where = "the run has no such rollout" if rollouts else "name the run that it is in: --run, or calibration.run"
        raise DataError(f"{verdict.place}: rollout {verdict.rollout_id!r}: {where}")
    return rollouts[verdict.rollout_id]


def rollouts_of(run: Path | None, verdicts: Sequence[Verdict]) -> dict[str, Rollout]:
    """The judged rollouts of a run folder, by id."""
    wanted = {verdict.rollout_id for verdict in verdicts}
    if run is None:
        return {}
    found = (rollout for _, rollout in RunStore.open(run).rollouts() if rollout is not None)
    return {rollout.rollout_id: rollout for rollout in found if rollout.rollout_id in wanted}
