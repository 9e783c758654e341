"""Recorded work to imitate: the best candidate of each turn, or the calls of rollouts that earned enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nat_finetune.data.pairs import candidate_sets, reaches, require_step
from nat_finetune.data.trajectories import is_target
from nat_finetune.types import (
    Candidate,
    CandidateScored,
    Demonstration,
    Dropped,
    DropReason,
    ModelCall,
    Provenance,
    Rollout,
    Target,
)


def best_candidates(
    rollouts: Iterable[Rollout], step_name: str, min_score: float | None, target: Target
) -> Iterator[Demonstration | Dropped]:
    """The best candidate of each turn, the earliest of equals; none where even that one scores below `min_score`.

    Raises:
        DataError: candidates were emitted, but none under `step_name`; names those that were.
    """
    emitted: set[str] = set()
    for rollout in rollouts:
        emitted |= {event.step_name for event in rollout.events if isinstance(event, CandidateScored)}
        for found in candidate_sets(rollout, step_name, target):
            if isinstance(found, Dropped):
                yield found
                continue
            best = max(found, key=lambda candidate: candidate.score)
            for candidate in found:
                if candidate is not best:
                    yield _dropped(rollout, candidate, DropReason.NOT_BEST, f"{candidate.score:g}, the best {best.score:g}")
                elif min_score is not None and not reaches(best.score, min_score):
                    yield _dropped(rollout, candidate, DropReason.LOW_SCORE, f"{best.score:g}, min_score is {min_score:g}")
                else:
                    yield _of_candidate(rollout, candidate, len(found))
    require_step(emitted, step_name)


def good_rollouts(
    rollouts: Iterable[Rollout], reward: str, min_reward: float, target: Target
) -> Iterator[Demonstration | Dropped]:
    """Every trained call of each rollout whose reward reaches `min_reward`."""
    for rollout in rollouts:
        where = (rollout.example_id, rollout.rollout_id)
        earned = rollout.rewards.get(reward)
        if earned is None:
            yield Dropped("rollout", DropReason.UNKNOWN_REWARD, "", *where)
        elif not reaches(earned, min_reward):
            yield Dropped("rollout", DropReason.LOW_REWARD, f"{earned:g}, min_reward is {min_reward:g}", *where)
        else:
            calls = [call for call in rollout.model_calls if is_target(call, target)]
            if not calls:
                yield Dropped("rollout", DropReason.NO_TRAINED_CALL, "", *where)
            yield from (_of_call(rollout, call) for call in calls)


def _of_candidate(rollout: Rollout, candidate: Candidate, candidates: int) -> Demonstration:
    return Demonstration(
        context=candidate.context,
        completion=candidate.completion,
        prompt_ids=candidate.prompt_ids,
        completion_ids=candidate.completion_ids,
        provenance=Provenance(
            example_id=rollout.example_id,
            rollout_id=rollout.rollout_id,
            turn_id=candidate.turn_id,
            chosen_index=candidate.index,
            candidates=candidates,
            chosen_call=candidate.call_seq,
        ),
    )


def _of_call(rollout: Rollout, call: ModelCall) -> Demonstration | Dropped:
    text = call.message.get("content")
    if not call.completion_ids and not (isinstance(text, str) and text.strip()):
        return Dropped("call", DropReason.OUTPUT_NOT_TEXT, "", rollout.example_id, rollout.rollout_id, call.seq)
    return Demonstration(
        context=tuple(call.messages),
        completion=text or "",
        prompt_ids=call.prompt_ids,
        completion_ids=call.completion_ids,
        provenance=Provenance(example_id=rollout.example_id, rollout_id=rollout.rollout_id, chosen_call=call.seq),
    )


def _dropped(rollout: Rollout, candidate: Candidate, reason: DropReason, detail: str) -> Dropped:
    return Dropped("candidate", reason, detail, rollout.example_id, rollout.rollout_id, candidate.call_seq)
