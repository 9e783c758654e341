"""The words of nat-finetune as data: every core type, frozen, its invariants checked when it is made.

Everything here is a plain dataclass of JSON-able fields, so that `runstore` can write any of it as one line and load an
equal value back. No behaviour lives here beyond the invariants: recording is in `tracing/`, building in `data/`.
Text about a type's meaning is under its fields; the vocabulary is that of docs/names.md.

    examples    what is asked                       policies    whose calls, how they were sampled, what is trained
    events      what happened in a rollout          items       what can be trained on
    dropped     what was left out, and why          jobs        what a backend is given, and what it says of it
    scores      what evaluators say

All names are imported from here.
"""

from __future__ import annotations

from nat_finetune.types.dropped import Dropped, DroppedWhat, DropReason
from nat_finetune.types.events import (
    CandidateScored,
    Cause,
    Event,
    Failure,
    FunctionCall,
    ModelCall,
    RewardGiven,
    Rollout,
    ToolCall,
)
from nat_finetune.types.examples import Example, ExampleId, Message, Record, as_messages
from nat_finetune.types.items import (
    Candidate,
    Demonstration,
    Group,
    Item,
    PairScore,
    PreferencePair,
    Provenance,
    Segment,
    Trajectory,
    Turn,
)
from nat_finetune.types.jobs import Collection, HandOver, JobSpec, JobState, TrainingJobRef, TrainingJobStatus, UpdateResult
from nat_finetune.types.policies import FinishReason, PolicyRef, RewardCondition, RewardTerm, SamplingParams, Target
from nat_finetune.types.scores import Estimate, EvalResult, Score, ScoreRange

__all__ = [
    "Candidate",
    "CandidateScored",
    "Cause",
    "Collection",
    "Demonstration",
    "DropReason",
    "Dropped",
    "DroppedWhat",
    "Estimate",
    "EvalResult",
    "Event",
    "Example",
    "ExampleId",
    "Failure",
    "FinishReason",
    "FunctionCall",
    "Group",
    "HandOver",
    "Item",
    "JobSpec",
    "JobState",
    "Message",
    "ModelCall",
    "PairScore",
    "PolicyRef",
    "PreferencePair",
    "Provenance",
    "Record",
    "RewardCondition",
    "RewardGiven",
    "RewardTerm",
    "Rollout",
    "SamplingParams",
    "Score",
    "ScoreRange",
    "Segment",
    "Target",
    "ToolCall",
    "TrainingJobRef",
    "TrainingJobStatus",
    "Trajectory",
    "Turn",
    "UpdateResult",
    "as_messages",
]
