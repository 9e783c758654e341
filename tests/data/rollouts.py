"""Small rollouts of a workflow whose function `player` is trained."""

from nat_finetune.types import FinishReason, ModelCall, RewardGiven, RewardTerm, Rollout, SamplingParams, Target

TARGET = Target(("player",), "policy", (RewardTerm("outcome"),))


def call(seq, prompt, sampled, *, path=("<workflow>", "player"), llm="policy", ids=True, logprobs=True):
    return ModelCall(
        rollout_id="r",
        seq=seq,
        path=path,
        start=0.0,
        end=0.0,
        llm=llm,
        messages=({"role": "user", "content": "x"},),
        message={"role": "assistant", "content": "y"},
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=8, temperature=0.7),
        prompt_ids=tuple(prompt) if ids else None,
        completion_ids=tuple(sampled) if ids else None,
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(sampled))) if logprobs else None,
    )


def paid(seq, call_seq, value):
    return RewardGiven(rollout_id="r", seq=seq, path=(), start=0.0, end=0.0, name="step", value=value, call_seq=call_seq)


def rollout(*events, outcome=1.0, rollout_id="r", example_id="e"):
    return Rollout(rollout_id, example_id, 0, 0, events, rewards={"outcome": outcome, "other": None})
