"""`llm_judge`: a model scores each answer by itself, or ranks the answers of one example against one another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from nat_finetune.answers import UNIT, TargetEvaluatorConfig, answer_of, no_answer, target_of
from nat_finetune.config.component import LLMRef
from nat_finetune.config.template import check_template, fill, places, shown
from nat_finetune.errors import BackendError, InfrastructureFailure, Stage, StageError
from nat_finetune.evaluators.judgment import (
    ABSOLUTE,
    RANKING,
    Account,
    alike_pairs,
    numbered,
    ranking_request,
    read_ranking,
    read_score,
    score_request,
    win_rates,
)
from nat_finetune.interfaces import Builder, ChatModel, Evaluator
from nat_finetune.registry import register_evaluator
from nat_finetune.types import Example, Rollout, Score

T = TypeVar("T")


class LLMJudgeConfig(TargetEvaluatorConfig, name="llm_judge"):
    """What a model says of the answer, from 0 to 1; its failures are unknown scores, never 0."""

    llm_name: LLMRef
    """The judge: any entry of `llms`, such as one of `_type: openai`."""
    mode: Literal["absolute", "ranking"] = "absolute"
    """`absolute`: a score for each answer; `ranking`: the answers of an example are ranked together, in both orders."""
    criteria: str = "Correct, complete and clear is better."
    """What makes an answer good; the prompt's `{criteria}`."""
    prompt: str | None = None
    """Template with `{question}`, `{criteria}`, `{target}`, and `{answer}` or (ranking) `{answers}`; null: a plain one. How to
    reply is added to it."""
    low: float = 0.0
    """The judge's scale, mapped to 0 to 1."""
    high: float = 10.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    retries: Annotated[int, Field(ge=0)] = 2
    """Further attempts after an answer that can't be read. (Those after an HTTP error are the llm's keys.)"""
    check_every: Annotated[int, Field(ge=0)] = 10
    """Every so many judgments one is asked for twice, to report how repeatable it is; 0: never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        answer = "answers" if self.mode == "ranking" else "answer"
        if self.prompt is not None:
            check_template(self.prompt, ("question", "criteria", "target", answer), needed=(answer,))
        if "criteria" in self.model_fields_set and self.prompt is not None and not _shows(self.prompt, "criteria"):
            raise ValueError("criteria is not used: the prompt has no {criteria}")
        if "target_from" in self.model_fields_set and not _shows(self.prompt or "", "target"):
            raise ValueError("target_from is not used: the prompt has no {target}")
        if self.mode == "ranking" and {"low", "high"} & self.model_fields_set:
            raise ValueError("low and high are the scale of `mode: absolute`")
        if self.low >= self.high:
            raise ValueError(f"low must be below high, found {self.low:g} and {self.high:g}")
        return self

    def compares_rollouts(self) -> bool:
        """Whether scores only say how the rollouts of one example compare."""
        return self.mode == "ranking"


class Asking:
    """Asks the model, reads its answers, keeps account of failures and of how far it agrees with itself."""

    def __init__(self, config: LLMJudgeConfig, llm: ChatModel) -> None:
        self._config = config
        self._llm = llm
        self.account = Account()

    def can_judge(self, example: Example) -> bool:
        """Whether the example has what the prompt shows of it: the known answer, if that."""
        wanted = _shows(self._config.prompt or "", "target")
        return not wanted or target_of(example, self._config.target_from) is not None

    def prompt(self, example: Example, template: str, name: str, answer: str) -> str:
        """The filled prompt."""
        values = {"question": example.input, "criteria": self._config.criteria, name: answer}
        if _shows(template, "target"):
            values["target"] = target_of(example, self._config.target_from)
        return fill(template, values)

    def is_checked(self) -> bool:
        """Count a judgment; whether it is one of those to repeat."""
        self.account.judgments += 1
        every = self._config.check_every
        return every > 0 and (self.account.judgments - 1) % every == 0

    async def ask(self, prompt: str, read: Callable[[str], T]) -> T:
        """One readable answer.

        Raises:
            InfrastructureFailure: there was none in all attempts, or the llm failed for good.
        """
        problem = ""
        for _ in range(self._config.retries + 1):
            try:
                reply = await self._llm.chat(
                    [{"role": "user", "content": prompt}], temperature=0.0, max_tokens=self._config.max_tokens
                )
            except (BackendError, StageError) as error:
                self.account.failed += 1
                raise _failed(f"the judge failed: {error}", type(error).__name__) from error
            try:
                return read(reply.text)
            except ValueError as error:
                self.account.unread += 1
                problem = str(error)
        self.account.failed += 1
        raise _failed(
            f"no answer could be read in {self._config.retries + 1} attempts; the last: {problem}", "UnreadableJudgment"
        )


class AbsoluteJudge:
    """Scores each answer by itself."""

    score_range = UNIT

    def __init__(self, config: LLMJudgeConfig, judge: Asking) -> None:
        self._config = config
        self._judge = judge

    async def __call__(self, example: Example, rollout: Rollout) -> Score | None:
        """The judge's score of this answer; 0 without asking where there is none, None where it needs a target and has none."""
        config, judge = self._config, self._judge
        missing = no_answer(rollout, config.answer_from)
        if missing is not None:
            return Score(0.0, missing)
        if not judge.can_judge(example):
            return None
        prompt = judge.prompt(example, config.prompt or ABSOLUTE, "answer", shown(answer_of(rollout, config.answer_from)))
        prompt += score_request(config.low, config.high)
        scale = config.high - config.low

        def read(text: str) -> tuple[float, str | None]:
            return read_score(text, config.low, config.high)

        value, reason = await judge.ask(prompt, read)
        if judge.is_checked():
            again, _ = await judge.ask(prompt, read)
            judge.account.repeated.add(int(again == value), 1)
            judge.account.difference += abs(again - value) / scale
        return Score((value - config.low) / scale, reason)

    def observed(self) -> list[str]:
        """Judgments, failures, repeatability."""
        return self._judge.account.sentences()


class RankingJudge:
    """Ranks the different answers of an example, once in each order; a score is the share of the others that one beats."""

    score_range = UNIT

    def __init__(self, config: LLMJudgeConfig, judge: Asking) -> None:
        self._config = config
        self._judge = judge

    async def __call__(self, example: Example, rollout: Rollout) -> float | Score | None:
        """Unknown: one answer has nothing to be compared with."""
        return None

    async def evaluate_group(self, example: Example, rollouts: Sequence[Rollout]) -> list[Score | None]:
        """Equal answers tie, missing ones lose; unknown for a single rollout, or where a target is needed and there is none."""
        config, judge = self._config, self._judge
        answers = [
            None if no_answer(r, config.answer_from) is not None else shown(answer_of(r, config.answer_from)) for r in rollouts
        ]
        texts = sorted({answer for answer in answers if answer is not None})
        if len(answers) < 2 or not judge.can_judge(example):
            return [None] * len(answers)
        shown_as = range(len(texts))
        if len(texts) < 2:
            same = "nothing to compare: the answers are equal or missing"
            return [Score(rate, same) for rate in win_rates(answers, texts, [shown_as])]
        forward, reason = await self._ranking(example, texts, shown_as)
        backward, _ = await self._ranking(example, texts, shown_as[::-1])
        judge.account.swapped.add(*alike_pairs(forward, backward))
        if judge.is_checked():
            again, _ = await self._ranking(example, texts, shown_as)
            judge.account.repeated.add(int(again == forward), 1)
        rates = win_rates(answers, texts, [forward, backward])
        return [Score(rate, reason) for rate in rates]

    async def _ranking(self, example: Example, texts: Sequence[str], order: Sequence[int]) -> tuple[list[int], str | None]:
        """Positions in `texts`, best first, as judged when they are shown in this order; the judge's reason."""
        answers = numbered([texts[position] for position in order])
        prompt = self._judge.prompt(example, self._config.prompt or RANKING, "answers", answers) + ranking_request(len(order))
        ranking, reason = await self._judge.ask(prompt, lambda text: read_ranking(text, len(order)))
        return [order[place] for place in ranking], reason

    def observed(self) -> list[str]:
        """Judgments, failures, repeatability, position-swap agreement."""
        return self._judge.account.sentences()


@register_evaluator(config_type=LLMJudgeConfig)
async def llm_judge(config: LLMJudgeConfig, builder: Builder) -> AsyncIterator[Evaluator]:
    """Make the judge."""
    judge = Asking(config, await builder.get_llm(config.llm_name))
    yield RankingJudge(config, judge) if config.mode == "ranking" else AbsoluteJudge(config, judge)


def _shows(template: str, name: str) -> bool:
    return any(place.split(".")[0] == name for place in places(template))


def _failed(message: str, kind: str) -> InfrastructureFailure:
    return InfrastructureFailure(message, stage=Stage.EVALUATOR, error_type=kind)
