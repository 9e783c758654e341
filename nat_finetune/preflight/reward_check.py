"""The reward before it is trained on: calibrate it, keep what was found, and stop where it can't be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nat_finetune.compose import Composition, compose
from nat_finetune.config.load import LoadedConfig
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import ConfigError, Problem, UntrustedReward
from nat_finetune.preflight.calibration import (
    Reward,
    VerdictCheck,
    best_total,
    check_known_answers,
    check_verdicts,
    read_verdicts,
    rollouts_of,
)
from nat_finetune.preflight.holdout import load_data
from nat_finetune.preflight.messages import (
    known_answers_message,
    known_answers_sentence,
    verdicts_lines,
    verdicts_message,
)
from nat_finetune.registry import Registry
from nat_finetune.runstore import RunStore
from nat_finetune.steps.selection import best_scores
from nat_finetune.types import Example

RECORD = "calibration.json"


async def require_trusted_reward(
    config: RunConfig,
    parts: Composition,
    store: RunStore,
    train: Sequence[Example],
    every: Sequence[Example],
    warn: Callable[[str], None],
) -> None:
    """Check the trained reward as `finetuning.calibration` says; done once for a run.

    Raises:
        UntrustedReward: it fails, and `on_problem` is `stop`.
        DataError: the verdicts can't be used.
    """
    settings, target, seed = config.finetuning.calibration, parts.target, config.finetuning.seed
    if not target.rewards or store.read_json(RECORD) is not None:
        return
    reward = await trained_reward(config, parts)
    record: dict[str, Any] = {"sentence": "the reward was not checked: finetuning.calibration.enabled is false"}
    messages: list[str] = []
    if settings.enabled:
        best = best_total(target, best_scores(target, reward.evaluators))
        found = await check_known_answers(reward, train, settings, best, seed)
        record = {"known_answers": found, "sentence": known_answers_sentence(found)}
        messages += [known_answers_message(found)] if found.problems else []
    if settings.verdicts is not None:
        run = Path(settings.run) if settings.run is not None else None
        check = await _against(config, reward, Path(settings.verdicts), run, every)
        record |= {"verdicts": check, "sentence": f"{record['sentence']}; {verdicts_lines(check)[0]}"}
        messages += [verdicts_message(check)] if check.problems else []
    for message in messages:
        if settings.on_problem == "stop":
            raise UntrustedReward(message)
        warn(message)
    store.write_json(RECORD, record)


async def calibrate_config(loaded: LoadedConfig, registry: Registry, verdicts: Path, run: Path | None) -> VerdictCheck:
    """Hold a config's reward against reviewers' verdicts on its own examples.

    Raises:
        ConfigError: the config trains no reward.
        DataError: the verdicts can't be used.
    """
    config = loaded.config
    async with compose(config, registry) as parts:
        if not parts.target.rewards:
            raise ConfigError(Problem("there is no reward to calibrate", "finetuning.reward_function", file=str(loaded.path)))
        data = await load_data(config, parts, None)
        return await _against(
            config, await trained_reward(config, parts), verdicts, run, [*data.train, *data.validation, *data.test]
        )


async def trained_reward(config: RunConfig, parts: Composition) -> Reward:
    """What is trained, with the evaluators that it needs."""
    evaluators = {name: await parts.get_evaluator(name) for name in parts.target.needed_scores}
    return Reward(parts.target, evaluators, config.finetuning.rollout_timeout_seconds)


async def _against(
    config: RunConfig, reward: Reward, path: Path, run: Path | None, examples: Sequence[Example]
) -> VerdictCheck:
    verdicts = read_verdicts(path)
    return await check_verdicts(
        reward,
        verdicts,
        examples,
        rollouts_of(run, verdicts),
        min_agreement=config.finetuning.calibration.min_agreement,
        seed=config.finetuning.seed,
        confidence=config.finetuning.confidence,
    )
