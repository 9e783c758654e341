"""What was left out, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from nat_finetune.types.examples import ExampleId


class DropReason(StrEnum):
    """Why something was left out. Each is counted and shown in the report."""

    NO_TURN_ID = "no_turn_id"
    NO_SCORE = "no_score"
    SCORE_NOT_A_NUMBER = "score_not_a_number"
    NO_CONTEXT = "no_context"
    CONTEXT_NOT_MESSAGES = "context_not_messages"
    OUTPUT_NOT_TEXT = "output_not_text"
    SINGLE_CANDIDATE = "single_candidate"
    TIE = "tie"
    SCORE_DIFF = "score_diff"
    CONTEXT_DIFFERS = "context_differs"
    IDENTICAL_TEXT = "identical_text"
    ANSWER_IN_CONTEXT = "answer_in_context"
    MAX_PAIRS_PER_TURN = "max_pairs_per_turn"
    DUPLICATE = "duplicate"
    MERGED = "merged"
    """Another person's equal judgment: its weight went to the pair that was kept."""
    CONTRADICTION = "contradiction"
    """The reverse is preferred elsewhere in the same context."""
    NOT_BEST = "not_best"
    """A candidate beside a better one of its turn, where the best is imitated."""
    LOW_SCORE = "low_score"
    """The best candidate of its turn, but not good enough to imitate."""
    LOW_REWARD = "low_reward"
    """A rollout that did not earn enough to imitate."""
    MIN_CHOSEN_SCORE = "min_chosen_score"
    """The better of two answers that are both unfit."""
    BRIDGES_SPLIT = "bridges_split"
    """A new row that belongs to more than one side of a kept split."""
    MAX_PAIRS = "max_pairs"
    ONE_OF_ITS_SET = "one_of_its_set"
    """In a file without weights one pair stands for its candidate set: this is another one."""
    NOT_IN_FORMAT = "not_in_format"
    """Says more than the format of an exported file can hold."""
    HELD_OUT = "held_out"
    """Of an example that is kept for the test."""
    OUTSIDE_TARGET = "outside_target"
    """A model call outside `target_functions`, or by another model than `target_model`."""
    NO_TOKEN_IDS = "no_token_ids"
    NO_LOGPROBS = "no_logprobs"
    NO_TRAINED_CALL = "no_trained_call"
    """A rollout without a call of the target model inside a target function."""
    UNKNOWN_REWARD = "unknown_reward"
    TOO_FEW_ROLLOUTS = "too_few_rollouts"
    """Fewer than two rollouts with a known reward: nothing to compare."""
    TOO_FEW_REWARDS = "too_few_rewards"
    LOW_SPREAD = "low_spread"
    FLAT_GROUP = "flat_group"
    """All rewards of a group equal: advantage 0, no gradient."""
    CURRICULUM = "curriculum"
    RANDOM_SUBSAMPLE = "random_subsample"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    NOT_A_CANDIDATE = "not_a_candidate"
    """A target call that ended in no preference pair because it proposed no scored candidate."""
    NOT_PAIRED = "not_paired"
    """A scored candidate that ended in no preference pair."""
    SUPERSEDED = "superseded"
    """Work of an attempt that was retried."""
    UNFINISHED = "unfinished"
    """Work of a step that the run did not get to the end of."""
    BAD_RECORD = "bad_record"
    """A row of a preference file that can't be understood; the detail names file, line and reason."""
    TRUNCATED = "truncated"
    """A call of the rollout was cut off by `max_tokens`, and the config leaves such rollouts out or masks them."""
    TOO_LONG = "too_long"
    """Longer than the trainer's limit; never cut silently."""


DroppedWhat = Literal["candidate", "turn", "pair", "group", "rollout", "trajectory", "call", "record", "demonstration"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was left out, with its reason."""

    what: DroppedWhat
    reason: DropReason
    detail: str = ""
    example_id: ExampleId | None = None
    rollout_id: str | None = None
    call_seq: int | None = None
    """`seq` of the model call that it is about; of a pair the chosen completion's."""
    rejected_call: int | None = None
    """Of a pair: `seq` of the rejected completion's call."""
    record: str | None = None
    """Reviewer record: file and line."""
