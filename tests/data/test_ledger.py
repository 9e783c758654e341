"""The ledger accounts for every call and token, whatever happened to it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.groups import build_groups
from nat_finetune.data.ledger import Ledger
from nat_finetune.data.pairs import PairBuilder, PairRules
from nat_finetune.data.selection import deduplicate
from nat_finetune.data.trajectories import Credit
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Collection,
    Dropped,
    DropReason,
    Failure,
    FinishReason,
    ModelCall,
    RewardTerm,
    Rollout,
    SamplingParams,
    Target,
)

TARGET = Target(("player",), "policy", (RewardTerm("outcome"),))


def call(seq, *, llm="policy", path=("player",), tokens=2, ids=True):
    return ModelCall(
        rollout_id="r",
        seq=seq,
        path=path,
        start=0.0,
        end=0.0,
        llm=llm,
        messages=(),
        message={"content": f"{seq}"},
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=8),
        prompt_ids=(7, 7, 7) if ids else None,
        completion_ids=tuple(range(tokens)) if ids else None,
        logprobs=(-0.5,) * tokens if ids else None,
    )


def candidate(seq, call_seq, score):
    return CandidateScored(
        rollout_id="r", seq=seq, path=("player",), start=0.0, end=0.0, step_name="s", turn_id="t", input="P", output=f"o{seq}",
        score=score, call_seq=call_seq,
    )  # fmt: skip


def collect(rollouts, builder):
    made = list(builder(rollouts))
    dropped = tuple(item for item in made if isinstance(item, Dropped))
    return Collection(tuple(item for item in made if not isinstance(item, Dropped)), "run", 0, "policy", dropped)


def groups(rollouts):
    return build_groups(rollouts, TARGET, Credit())


def pairs(rollouts):
    return PairBuilder(PairRules("s"), TARGET).build(rollouts)


def account(rollouts, builder, later=()):
    """The rows, given what the backend left out later."""
    ledger = Ledger()
    ledger.add(rollouts, collect(rollouts, builder), TARGET, later)
    return {(row["bucket"], row["reason"]): (row["calls"], row["tokens"]) for row in ledger.to_dict()["rows"]}


def test_groups_by_bucket():
    rollouts = [
        Rollout("a", 1, 0, 0, (call(0), call(1, llm="judge", tokens=5)), rewards={"outcome": 1.0}),
        Rollout("b", 1, 0, 0, (call(0, tokens=3),), rewards={"outcome": 0.0}),
        Rollout("c", 2, 0, 0, (call(0),), rewards={"outcome": 0.7}),
        Rollout("d", 2, 0, 0, (call(0),), rewards={"outcome": 0.7}),
        Rollout("e", 3, 0, 0, (call(0),), rewards={"outcome": None}),
        Rollout("f", 4, 0, 0, (call(0),), rewards={"outcome": 1.0}),
        Rollout("g", 5, 0, 0, (call(0), call(1, ids=False)), rewards={"outcome": 1.0}),
    ]
    assert account(rollouts, groups) == {
        ("trained", None): (2, 5),
        ("masked", "context"): (0, 24),
        ("masked", "zero_advantage"): (2, 4),
        ("dropped", "outside_target"): (1, 5),
        ("dropped", "unknown_reward"): (1, 2),
        ("dropped", "too_few_rollouts"): (1, 2),
        ("dropped", "no_token_ids"): (2, 2),
    }


def test_pairs_by_bucket():
    events = (call(0), call(1), call(2), call(3), candidate(4, 0, 1.0), candidate(5, 1, 0.0), candidate(6, 2, None))
    rollouts = [Rollout("a", 1, 0, 0, events)]
    assert account(rollouts, pairs) == {
        ("trained", None): (2, 4),
        ("masked", "context"): (0, 12),
        ("dropped", "no_score"): (1, 2),
        ("dropped", "not_a_candidate"): (1, 2),
    }


def test_what_the_backend_left_out_is_not_trained():
    rollouts = [Rollout(name, 1, 0, 0, (call(0),), rewards={"outcome": o}) for name, o in (("a", 1.0), ("b", 0.0))]
    late = Dropped("trajectory", DropReason.TOO_LONG, "", 1, "a")
    assert account(rollouts, groups, [late]) == {
        ("trained", None): (1, 2),
        ("masked", "context"): (0, 6),
        ("dropped", "too_long"): (1, 2),
    }


def test_what_is_compared_and_not_trained_is_masked():
    cut = replace(call(0), finish_reason=FinishReason.LENGTH)
    rollouts = [
        Rollout(name, 1, 0, 0, (made,), rewards={"outcome": o}) for name, o, made in (("a", 1.0, call(0)), ("b", 0.0, cut))
    ]

    def masking(made):
        return build_groups(made, TARGET, Credit(truncated="mask"))

    def dropping(made):
        return build_groups(made, TARGET, Credit(truncated="drop"))

    late = [Dropped("trajectory", DropReason.TRUNCATED, "", 1, "b")]
    rows = account(rollouts, masking, late)
    assert (rows["trained", None], rows["masked", "truncated"]) == ((1, 2), (1, 2))
    assert account(rollouts, dropping)["dropped", "truncated"] == (1, 2)


def test_a_call_is_trained_while_one_of_its_pairs_is():
    events = (call(0), call(1), call(2), candidate(4, 0, 1.0), candidate(5, 1, 0.5), candidate(6, 2, 0.0))
    rollouts = [Rollout("a", 1, 0, 0, events)]
    late = [Dropped("pair", DropReason.TOO_LONG, "", 1, "a", *calls) for calls in ((0, 2), (1, 2))]
    assert account(rollouts, pairs, late[:1])["trained", None] == (3, 6)
    assert account(rollouts, pairs, late)["trained", None] == (2, 4)
    assert account(rollouts, pairs, late)["dropped", "too_long"] == (1, 2)


def test_duplicates_and_ties_by_reason():
    events = (call(0), call(1), candidate(4, 0, 1.0), candidate(5, 1, 0.0))
    rollouts = [Rollout(name, 1, 0, 0, events) for name in ("a", "b")]
    built = collect(rollouts, pairs)
    kept, left_out = deduplicate(built.items)
    ledger = Ledger()
    ledger.add(rollouts, Collection(tuple(kept), "run", 0, "policy", tuple(left_out)), TARGET)
    assert [(r["reason"], r["calls"]) for r in ledger.to_dict()["rows"]] == [(None, 2), ("context", 0), ("duplicate", 2)]
    tied = [Rollout("a", 1, 0, 0, (call(0), call(1), candidate(4, 0, 1.0), candidate(5, 1, 1.0)))]
    assert account(tied, pairs) == {("masked", "context"): (0, 6), ("dropped", "not_paired"): (2, 4)}


def test_calls_whose_tokens_nobody_knows_are_counted_as_such():
    ledger = Ledger()
    ledger.add_superseded([Rollout("a", 1, 0, 0, (call(0), call(1, ids=False)))])
    assert ledger.to_dict()["calls_without_tokens"] == 1
    assert Ledger.from_dict(ledger.to_dict()).to_dict() == ledger.to_dict()
    assert Ledger.from_dict({}).to_dict() == {"rows": [], "calls_without_tokens": 0}


def test_ids_of_examples_keep_their_type():
    flat = [Rollout(f"i{n}", 1, 0, 0, (call(0),), rewards={"outcome": 0.5}) for n in range(2)]
    alone = Rollout("s", "1", 0, 0, (call(0),), rewards={"outcome": 0.5})
    rows = account([*flat, alone], groups)
    assert (rows["masked", "zero_advantage"], rows["dropped", "too_few_rollouts"]) == ((2, 4), (1, 2))


calls = st.lists(
    st.tuples(
        st.sampled_from(["policy", "judge"]), st.sampled_from([("player",), ("other",)]), st.integers(1, 4), st.booleans()
    ),
    max_size=3,
)
rewards = st.sampled_from([None, 0.0, 0.7, 1.0])
failures = st.sampled_from([None, Cause.POLICY, Cause.INFRASTRUCTURE])


@given(st.lists(st.tuples(calls, st.integers(0, 2), rewards, failures), max_size=8), st.sampled_from([groups, pairs]))
def test_the_rows_sum_to_everything(shapes, builder):
    rollouts = []
    for index, (made, example, reward, cause) in enumerate(shapes):
        events = [call(seq, llm=llm, path=path, tokens=n, ids=ids) for seq, (llm, path, n, ids) in enumerate(made)]
        failure = None
        if cause is not None:
            failure = Failure(
                rollout_id="r", seq=9, path=(), start=0.0, end=0.0, stage="model", cause=cause, error_type="E", message="m"
            )
        events += [candidate(20 + seq, seq, float(seq)) for seq in range(len(made)) if reward]
        rollouts.append(Rollout(f"r{index}", example, 0, 0, tuple(events), rewards={"outcome": reward}, failure=failure))
    rows = Ledger()
    rows.add(rollouts, collect(rollouts, builder), TARGET)
    rows.add_superseded(rollouts[:1])
    again = Ledger.from_dict(rows.to_dict())
    assert again.to_dict() == rows.to_dict()
    everything = [c for r in [*rollouts, *rollouts[:1]] for c in r.model_calls]
    assert sum(row["calls"] for row in again.to_dict()["rows"]) == len(everything)
    tokens = sum(len(c.prompt_ids or ()) + len(c.completion_ids or ()) for c in everything)
    assert sum(row["tokens"] for row in again.to_dict()["rows"]) == tokens
    reasons = {row["reason"] for row in again.to_dict()["rows"]}
    assert not reasons & ({"not_a_candidate", "not_paired"} if builder is groups else {"too_few_rollouts", "flat_group"})


def test_a_retried_attempt_is_no_candidate_of_the_group():
    failed = Failure(
        rollout_id="r",
        seq=9,
        path=(),
        start=0.0,
        end=0.0,
        stage="model",
        cause=Cause.INFRASTRUCTURE,
        error_type="E",
        message="m",
    )
    rollouts = [
        replace(Rollout("a~1", 1, 0, 0, (call(0),), rewards={"outcome": None}), failure=failed),
        Rollout("a", 1, 0, 0, (call(0),), rewards={"outcome": 1.0}),
        Rollout("b", 1, 0, 0, (call(0),), rewards={"outcome": 0.0}),
    ]
    assert account(rollouts, groups)["dropped", "infrastructure_failure"] == (1, 2)
