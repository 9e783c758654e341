"""`llm_judge` over the real wire: a server on this machine, with the faults that servers have."""

import json
import re
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from nat_finetune.config.component import EvaluatorBaseConfig
from nat_finetune.errors import InfrastructureFailure
from nat_finetune.evaluators.judgment import alike_pairs, read_ranking, read_score, win_rates
from nat_finetune.evaluators.llm_judge import LLMJudgeConfig, llm_judge
from nat_finetune.llms.openai import OpenAILLMConfig, openai_llm
from nat_finetune.types import Example, Rollout
from tests.fixtures.endpoint import Answer, endpoint_server

EXAMPLE = Example(1, "What is {answer}?", "4")


def said(content):
    text = content if isinstance(content, str) else json.dumps(content)
    message = {"role": "assistant", "content": text}
    return Answer({"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def rollouts(*answers):
    return [Rollout(f"r{n}", 1, n, 0, (), output=answer) for n, answer in enumerate(answers)]


async def judged(server, answers, *, timeout=5.0, retries=0, **config):
    """(scores or the failure, sentences, requests) of a judge behind the server."""
    endpoint = OpenAILLMConfig(
        model_name="m", base_url=server.url, api_key="k", request_timeout=timeout, num_retries=retries, max_retries=0
    )
    async for llm in openai_llm(endpoint, SimpleNamespace(entry_name="judge", seed=0)):
        builder = SimpleNamespace(entry_name="quality", get_llm=lambda name, llm=llm: given(llm))
        async for judge in llm_judge(LLMJudgeConfig(llm_name="judge", **config), builder):
            try:
                if config.get("mode") == "ranking":
                    scores = await judge.evaluate_group(EXAMPLE, rollouts(*answers))
                else:
                    scores = [await judge(EXAMPLE, rollout) for rollout in rollouts(*answers)]
            except InfrastructureFailure as failure:
                scores = failure
            return scores, judge.observed(), [asked.body for asked in server.asked]


async def given(value):
    return value


def values(scores):
    return [None if score is None else score.value for score in scores]


async def test_an_absolute_score():
    async with endpoint_server(said({"reason": "fine", "score": 7.5})) as server:
        scores, sentences, bodies = await judged(server, ["four"], check_every=0)
    assert (scores[0].value, scores[0].reasoning) == (0.75, "fine")
    assert bodies[0]["temperature"] == 0.0
    prompt = bodies[0]["messages"][0]["content"]
    assert "What is {answer}?" in prompt  # what is filled in is not filled again
    assert "<answer>\nfour\n</answer>" in prompt
    assert sentences == ["1 judgments, 0 failed (unknown), 0 answers that could not be read"]


async def test_a_missing_answer_costs_no_call():
    async with endpoint_server(said({"score": 10})) as server:
        scores, _, bodies = await judged(server, [None])
    assert values(scores) == [0.0]
    assert bodies == []


async def test_a_prompt_of_ones_own_shows_the_target_and_without_one_the_score_is_unknown():
    async with endpoint_server(said("3")) as server:
        scores, _, bodies = await judged(server, ["5"], prompt="{answer} or {target}?", low=1, high=5, check_every=0)
        assert values(scores) == [0.5]
        assert bodies[0]["messages"][0]["content"].startswith("5 or 4?")
        scores, *_ = await judged(server, ["5"], prompt="{answer} or {target}?", target_from="metadata.no", check_every=0)
    assert isinstance(scores, InfrastructureFailure)


@pytest.mark.parametrize(
    "garbage", ["seven of ten", '{"score": "7"}', '{"score": 11}', '{"score": NaN}', "[" * 9999, "", "true"]
)
async def test_an_answer_that_cannot_be_read_is_asked_again(garbage):
    async with endpoint_server(said(garbage), said({"score": 5})) as server:
        scores, sentences, bodies = await judged(server, ["x"], check_every=0)
    assert values(scores) == [0.5]
    assert len(bodies) == 2
    assert "1 answers that could not be read" in sentences[0]


@pytest.mark.parametrize(
    ("answer", "timeout", "words"),
    [
        (said("no idea"), 5.0, "no answer could be read in 3 attempts; the last: expected JSON only, found 'no idea'"),
        (Answer({"error": "down"}, status="500 Internal Server Error"), 5.0, "500"),
        (Answer("<html>", status="200 OK"), 5.0, "the judge failed"),
        (Answer(drop=True), 5.0, "the judge failed"),
        (Answer({"slow": "x" * 50}, seconds_per_byte=0.05), 0.2, "gave no answer in 0.2 s"),
    ],
)
async def test_its_failures_are_unknown_scores(answer, timeout, words):
    async with endpoint_server(answer) as server:
        failure, sentences, _ = await judged(server, ["x"], timeout=timeout)
    assert isinstance(failure, InfrastructureFailure)
    assert words in str(failure)
    assert "1 failed (unknown)" in sentences[0]


async def test_repeatability():
    async with endpoint_server(said({"score": 5}), said({"score": 7})) as server:
        scores, sentences, _ = await judged(server, ["x", "y"], check_every=1)
    assert values(scores) == [0.5, 0.7]
    assert sentences[1] == "repeatability: 50% of 2 repeated judgments alike, mean difference 0.100 of the scale"


def prefers(key):
    """A judge that ranks by a function of (number, text)."""

    def answer(asked):
        shown = re.findall(r'<answer number="(\d+)">\n(.*)\n</answer>', asked.body["messages"][0]["content"])
        ranked = sorted(shown, key=lambda item: key(int(item[0]), item[1]))
        return said({"ranking": [int(number) for number, _ in ranked]})

    return answer


async def test_a_ranking_by_length():
    async with endpoint_server(prefers(lambda number, text: -len(text))) as server:
        scores, sentences, bodies = await judged(server, ["a", "ccc", "bb", "a", None], mode="ranking")
    assert values(scores) == [0.375, 1.0, 0.75, 0.375, 0.0]
    assert len(bodies) == 3  # both orders, and the repetition
    assert "repeatability: 100% of 1" in sentences[1]
    assert sentences[2].startswith("position-swap agreement: 100% of 3 pairs")


async def test_a_judge_that_only_looks_at_the_position_gives_ties_and_is_told():
    async with endpoint_server(prefers(lambda number, text: number)) as server:
        scores, sentences, _ = await judged(server, ["a", "b", "c"], mode="ranking", check_every=0)
    assert values(scores) == [0.5, 0.5, 0.5]
    assert sentences[1].startswith("position-swap agreement: 0% of 3 pairs")


async def test_nothing_to_compare_costs_no_call():
    async with endpoint_server(said("x")) as server:
        assert values((await judged(server, ["a", "a"], mode="ranking"))[0]) == [0.5, 0.5]
        assert values((await judged(server, ["a", None], mode="ranking"))[0]) == [1.0, 0.0]
        assert (await judged(server, ["a"], mode="ranking"))[0] == [None]
        assert server.asked == []


@pytest.mark.parametrize("ranking", [[1, 1], [1], [0, 1], [True, 2], "12", None, [1.0, 2]])
def test_a_ranking_names_each_answer_once(ranking):
    with pytest.raises(ValueError, match="each number from 1 to 2 once"):
        read_ranking(json.dumps({"ranking": ranking}), 2)


def test_reading_and_counting():
    assert read_score('```json\n{"score": 3}\n```', 0, 10) == (3.0, None)
    assert read_ranking("[2, 1]", 2) == ([1, 0], None)
    assert alike_pairs([0, 1, 2], [1, 0, 2]) == (2, 3)
    assert win_rates(["b", None, "a"], ["b", "a"], [[1, 0], [0, 1]]) == [0.75, 0.0, 0.75]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"prompt": "{anwser}"}, "did you mean 'answer'"),
        ({"prompt": "{question}"}, "has no {answer}"),
        ({"prompt": "{answer}", "mode": "ranking"}, "there is no {answer}"),
        ({"target_from": "metadata.x"}, "target_from is not used"),
        ({"prompt": "{answer}", "criteria": "short"}, "criteria is not used"),
        ({"low": 5, "high": 5}, "low must be below high"),
        ({"mode": "ranking", "high": 5}, "the scale of `mode: absolute`"),
    ],
)
def test_what_would_be_ignored_is_refused(config, words):
    with pytest.raises(ValidationError, match=re.escape(words)):
        LLMJudgeConfig(llm_name="judge", **config)


def test_only_a_ranking_compares():
    assert LLMJudgeConfig(llm_name="judge", mode="ranking").compares_rollouts()
    assert not LLMJudgeConfig(llm_name="judge").compares_rollouts()
    assert not EvaluatorBaseConfig().compares_rollouts()
