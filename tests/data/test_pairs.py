"""Pairs against a slow reading of the rules, and what becomes of candidates that can't be used."""

import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.pairs import PairBuilder, PairRules, reaches
from nat_finetune.errors import DataError
from nat_finetune.types import (
    CandidateScored,
    Dropped,
    FinishReason,
    ModelCall,
    PreferencePair,
    Rollout,
    SamplingParams,
    Target,
)

TARGET = Target(("player",), "policy")
MESSAGES = ({"role": "user", "content": "P"},)


def candidate(seq, score=0.5, output=None, **fields):
    fields = {"step_name": "s", "turn_id": "t", "input": "P", "path": ("<workflow>", "player"), **fields}
    output = f"o{seq}" if output is None else output
    return CandidateScored(rollout_id="r", seq=seq, start=0.0, end=0.0, score=score, output=output, **fields)


def call(seq, content, *, prompt=(1,), sampled="own", llm="policy", path=("player",)):
    return ModelCall(
        rollout_id="r",
        seq=seq,
        path=path,
        start=0.0,
        end=0.0,
        llm=llm,
        messages=MESSAGES,
        message={"role": "assistant", "content": content},
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=8),
        prompt_ids=prompt,
        completion_ids=(seq, 0) if sampled == "own" else sampled,
    )


def build(*events, rules=None):
    made = list(PairBuilder(rules or PairRules("s"), TARGET).build([Rollout("r", "e", 0, 0, events)]))
    dropped = [(item.what, item.reason.value) for item in made if isinstance(item, Dropped)]
    return [item for item in made if isinstance(item, PreferencePair)], dropped


# ------------------------------------------------------------------------------------------------------------ single rules


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"turn_id": None}, "no_turn_id"),
        ({"turn_id": 1.0}, "no_turn_id"),
        ({"turn_id": True}, "no_turn_id"),
        ({"turn_id": None, "score": None}, "no_turn_id"),
        ({"score": None}, "no_score"),
        ({"score": True}, "score_not_a_number"),
        ({"score": "0.5"}, "score_not_a_number"),
        ({"score": math.nan}, "score_not_a_number"),
        ({"score": -math.inf}, "score_not_a_number"),
        ({"score": 10**400}, "score_not_a_number"),
        ({"input": None}, "no_context"),
        ({"input": {"role": "user"}}, "context_not_messages"),
        ({"input": ["P"]}, "context_not_messages"),
        ({"output": ["x"]}, "output_not_text"),
        ({"output": " \n"}, "output_not_text"),
        ({"path": ("<workflow>", "opponent")}, "outside_target"),
    ],
)
def test_a_candidate_that_can_not_be_used(fields, reason):
    pairs, dropped = build(candidate(0, 1.0), candidate(1, **fields), candidate(2, 0))
    assert dropped == [("candidate", reason)]
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("o0", "o2")]


def test_a_missing_index_is_the_position_in_its_turn_dropped_ones_counted():
    events = [
        candidate(0, None),
        candidate(1, 1.0),
        candidate(2, 0.5, turn_id="other"),
        candidate(3, 0.0),
        candidate(4, 0.25, turn_id="other", candidate_index=7),
        candidate(5, 2.0, candidate_index=True),
    ]
    pairs, _ = build(*events)
    found = [(pair.provenance.turn_id, pair.provenance.chosen_index, pair.provenance.rejected_index) for pair in pairs]
    assert found == [("t", 3, 2), ("t", 3, 1), ("t", 1, 2), ("other", 0, 7)]


def test_turns_are_apart_by_rollout_and_by_the_type_of_their_id():
    events = [candidate(0, 1.0, turn_id=1), candidate(1, 0.0, turn_id="1")]
    assert build(*events) == ([], [("turn", "single_candidate")] * 2)
    rollouts = [Rollout(name, "e", 0, 0, (candidate(0, score),)) for name, score in (("a", 1.0), ("b", 0.0))]
    assert all(isinstance(made, Dropped) for made in PairBuilder(PairRules("s"), TARGET).build(rollouts))


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        (candidate(1, 0.1 + 0.2), "tie"),
        (candidate(1, 0.25), "score_diff"),
        (candidate(1, 0.0, input="Q"), "context_differs"),
        (candidate(1, 0.0, output="o0"), "identical_text"),
        (candidate(1, 0.3, output="o0", input="Q"), "tie"),
    ],
)
def test_a_pair_that_is_none(worse, reason):
    pairs, dropped = build(candidate(0, 0.3), worse, rules=PairRules("s", min_score_diff=0.1))
    assert (pairs, dropped) == ([], [("pair", reason)])


def test_the_better_of_two_bad_answers_can_be_unfit():
    events = (candidate(0, 0.9), candidate(1, 0.4), candidate(2, 0.1))
    pairs, dropped = build(*events, rules=PairRules("s", min_chosen_score=0.5))
    assert [pair.chosen_score for pair in pairs] == [0.9, 0.9]
    assert dropped == [("pair", "min_chosen_score")]
    assert build(candidate(0, 0.1 + 0.2), candidate(1, 0.1), rules=PairRules("s", min_chosen_score=0.3))[1] == []


@pytest.mark.parametrize("answer", ["o0", "o1"])
def test_the_answer_in_its_own_context(answer):
    context = [*MESSAGES, {"role": "assistant", "content": answer}]
    assert build(candidate(0, 1.0, input=context), candidate(1, 0.0, input=context)) == ([], [("pair", "answer_in_context")])
    context.append({"role": "user", "content": "and?"})
    assert len(build(candidate(0, 1.0, input=context), candidate(1, 0.0, input=context))[0]) == 1


def test_a_text_and_its_one_user_message_are_one_context_shown_as_the_chosen_one_came():
    (pair,), _ = build(candidate(0, 1.0, input=[{"content": "P", "role": "user"}]), candidate(1, 0.0))
    assert (pair.context, pair.context_text) == (MESSAGES, None)
    (pair,), _ = build(candidate(0, 0.0, input=[{"content": "P", "role": "user"}]), candidate(1, 1.0))
    assert (pair.context, pair.context_text) == (MESSAGES, "P")


def test_thresholds_are_relative_to_themselves():
    assert reaches(0.3 - 0.2, 0.1)
    assert reaches(0.0, 0.0)
    assert not reaches(0.1 * (1 - 1e-8), 0.1)
    events = (candidate(0, 1_000_000.0015), candidate(1, 1_000_000.0))
    assert build(*events, rules=PairRules("s", min_score_diff=0.002)) == ([], [("pair", "score_diff")])


def test_names_that_were_emitted_instead():
    events = (candidate(0, step_name="b"), candidate(1, step_name="a"))
    with pytest.raises(DataError, match=r"step_name_not_emitted.*'s'; the names that were emitted: 'a', 'b'"):
        build(*events)
    assert build() == ([], [])


# --------------------------------------------------------------------------------------------------------------- token ids


def test_ids_come_from_calls_with_one_prompt():
    (pair,), _ = build(call(0, "yes"), call(1, "no"), candidate(2, 1.0, "yes", call_seq=0), candidate(3, 0.0, "no", call_seq=1))
    assert (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids) == ((1,), (0, 0), (1, 0))
    assert (pair.provenance.chosen_call, pair.provenance.rejected_call) == (0, 1)


def test_a_reply_without_its_outer_spaces_is_the_same_reply():
    events = (call(0, " yes\n"), call(1, "no"), candidate(2, 1.0, "yes", call_seq=0), candidate(3, 0.0, "no", call_seq=1))
    (pair,), _ = build(*events)
    assert (pair.chosen, pair.chosen_ids) == ("yes", (0, 0))


@pytest.mark.parametrize(
    "other",
    [
        {"content": "no", "prompt": (2,)},
        {"content": "no", "prompt": None},
        {"content": "no", "sampled": (0, 0)},
        {"content": "no", "sampled": None},
        {"content": "The answer is no"},
        {"content": None},
    ],
)
def test_ids_that_do_not_stand_for_the_texts_are_left_out(other):
    events = (call(0, "yes"), call(1, **other), candidate(2, 1.0, "yes", call_seq=0), candidate(3, 0.0, "no", call_seq=1))
    (pair,), _ = build(*events)
    assert (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids) == (None, None, None)
    assert (pair.chosen, pair.rejected, pair.provenance.rejected_call) == ("yes", "no", 1)


def test_two_answers_of_one_reply_have_no_ids_of_their_own():
    (pair,), _ = build(call(0, "1. yes 2. no"), candidate(1, 1.0, "yes", call_seq=0), candidate(2, 0.0, "no", call_seq=0))
    assert pair.chosen_ids is None


@pytest.mark.parametrize("made_by", [{"llm": "judge"}, {"path": ("opponent",)}])
def test_what_another_model_or_function_answered_is_no_candidate(made_by):
    inside, outside = candidate(2, 1.0, call_seq=0), candidate(3, 0.0, call_seq=1)
    assert build(call(0, "a"), call(1, "b", **made_by), inside, outside)[1] == [
        ("candidate", "outside_target"),
        ("turn", "single_candidate"),
    ]


def test_a_call_inside_counts_wherever_its_candidate_was_emitted():
    events = [candidate(2 + seq, float(seq), call_seq=seq, path=("<workflow>", "search")) for seq in (0, 1)]
    assert len(build(call(0, "a"), call(1, "b"), *events)[0]) == 1


# ------------------------------------------------------------------------------------------------------- against the rules


def slow_pairs(events, rules):
    """The rules read aloud, over one turn of valid candidates: (chosen, rejected) texts in order, and counts of drops."""
    drops = Counter()
    ranked = sorted(range(len(events)), key=lambda i: (-events[i].score, i))
    if len(events) < 2:
        return [], Counter({"single_candidate": len(events)})
    couples = list(combinations(ranked, 2)) if rules.exhaustive else [(ranked[0], ranked[-1])]
    kept = []
    for better, worse in couples:
        one, other = events[better], events[worse]
        if abs(one.score - other.score) <= 1e-9 * max(abs(one.score), abs(other.score)):
            drops["tie"] += 1
        elif one.score - other.score < rules.min_score_diff * (1 - 1e-9):
            drops["score_diff"] += 1
        elif one.input != other.input:
            drops["context_differs"] += 1
        elif one.output == other.output:
            drops["identical_text"] += 1
        else:
            kept.append((better, worse))
    kept.sort(key=lambda p: (-(events[p[0]].score - events[p[1]].score), ranked.index(p[0]), ranked.index(p[1])))
    limit = rules.max_pairs_per_turn if rules.exhaustive and rules.max_pairs_per_turn is not None else len(kept)
    drops["max_pairs_per_turn"] += max(0, len(kept) - limit)
    return [(events[a].seq, events[b].seq) for a, b in kept[:limit]], +drops


shapes = st.lists(
    st.tuples(st.sampled_from([-1.0, 0, 0.1 + 0.2, 0.3, 0.2, 1, 2.5]), st.sampled_from("PQ"), st.sampled_from("abcd")),
    max_size=7,
)
all_rules = st.builds(
    PairRules,
    st.just("s"),
    exhaustive=st.booleans(),
    min_score_diff=st.sampled_from([0.0, 0.1, 1.0]),
    max_pairs_per_turn=st.sampled_from([None, 1, 3]),
    reward_from_score_diff=st.booleans(),
)


@given(shapes, all_rules)
def test_every_turn_follows_the_rules(shape, rules):
    events = [
        candidate(seq, score, output, input=context, candidate_index=seq) for seq, (score, context, output) in enumerate(shape)
    ]
    pairs, dropped = build(*events, rules=rules)
    wanted, drops = slow_pairs(events, rules)
    assert [(pair.provenance.chosen_index, pair.provenance.rejected_index) for pair in pairs] == wanted
    assert Counter(reason for _, reason in dropped) == drops
    for pair in pairs:
        assert pair.margin == pair.chosen_score - pair.rejected_score > 0
        assert pair.reward == (pair.margin if rules.reward_from_score_diff else pair.chosen_score)
        assert pair.provenance.candidates == len(events)
        assert pair.set_id == "r/'t'"


@given(st.lists(st.tuples(st.integers(0, 3), shapes), max_size=4))
def test_counts_say_what_the_pairs_were_made_of(given_rollouts):
    builder = PairBuilder(PairRules("s", min_score_diff=0.5), TARGET)
    rollouts = [
        Rollout(f"r{i}", example, 0, 0, tuple(candidate(n, s, o, input=c) for n, (s, c, o) in enumerate(shape)))
        for i, (example, shape) in enumerate(given_rollouts)
    ]
    made = list(builder.build(rollouts))
    pairs, drops = [i for i in made if isinstance(i, PreferencePair)], Counter(i.reason for i in made if isinstance(i, Dropped))
    counts = builder.counts
    assert (counts.turns, counts.candidates) == (sum(1 for r in rollouts if r.events), sum(len(r.events) for r in rollouts))
    assert (counts.pairs, counts.single_candidate) == (len(pairs), drops["single_candidate"])
    assert counts.score_diff == drops["score_diff"]
    assert counts.examples_with_pair == len({pair.provenance.example_id for pair in pairs})
