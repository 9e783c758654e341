"""Rows say what the policy saw, in one form; the split is by example; weights are not lost."""

import json
from dataclasses import replace

import pytest
from nat_finetune_plugins.nemo_customizer.rows import RowRules, rows_of

from nat_finetune.errors import ConfigError, DataError
from nat_finetune.testing.items import demonstration, pair, trajectory
from nat_finetune.types import Collection, DropReason, Group, PreferencePair, Provenance

SYSTEM, USER = {"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2?"}


def rules(training_type="dpo", history=None, split=0.2, seed=7):
    return RowRules(training_type, history, split, seed)


def made(*context, chosen="4", rejected="5", example=1, text=None, **changes):
    provenance = Provenance(example, **{key: changes.pop(key) for key in ("task_key", "record") if key in changes})
    return PreferencePair(context or (USER,), chosen, rejected, provenance, context_text=text, **changes)


def rows(*items, given=None):
    return rows_of(Collection(tuple(items), "run", 0, "policy"), given or rules())


def written(made_rows):
    items, copies = (*made_rows.training, *made_rows.validation), made_rows.copies
    return [json.loads(line) for line in made_rows.lines(items, copies)]


def test_messages_stay_messages():
    assert written(rows(made(SYSTEM, USER), given=rules(split=0))) == [
        {"prompt": [SYSTEM, USER], "chosen_response": "4", "rejected_response": "5"}
    ]


def test_a_prompt_is_a_text_only_where_all_prompts_came_as_one():
    texts = rows(made(text="2 + 2?"), made(text="2 + 2?", example=2), given=rules(split=0))
    assert [row["prompt"] for row in written(texts)] == ["2 + 2?"] * 2
    mixed = rows(made(text="2 + 2?"), made(SYSTEM, USER, example=2), given=rules(split=0))
    assert [row["prompt"] for row in written(mixed)] == [[USER], [SYSTEM, USER]]


def test_the_whole_history_or_as_nat_the_last_message():
    whole = rows(made(text="2 + 2?"), given=rules(history=True, split=0))
    assert written(whole)[0]["prompt"] == [USER]
    last = rows(made(SYSTEM, USER), given=rules(history=False, split=0))
    assert written(last)[0]["prompt"] == "2 + 2?"
    assert any("left 1 of 1 prompts with their last message alone" in note for note in last.notes)


def test_lines_are_ascii():
    (line,) = rows(made({"role": "user", "content": "Größe? 🙂"}), given=rules(split=0)).lines([made(chosen="grün")], [1])
    assert line.isascii()
    assert json.loads(line)["chosen_response"] == "grün"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": "half a \ud83d"},
    ],
)
def test_what_the_format_can_not_say_is_dropped_with_its_reason(message):
    found = rows(made(message, USER), made(example=2), given=rules(split=0))
    assert [drop.reason for drop in found.dropped] == [DropReason.NOT_IN_FORMAT]
    assert len(found.training) == 1


def test_nothing_left_is_an_error():
    with pytest.raises(DataError, match=r"all 1 items were left out \(not_in_format\)"):
        rows(made(USER, {"role": "assistant", "content": "so"}))


def test_groups_and_warm_ups_are_refused():
    with pytest.raises(ConfigError, match="groups"):
        rows(Group(1, (trajectory((1,), (2,), (-1.0,), 1.0),)))
    with pytest.raises(ConfigError, match="warm-up"):
        rows_of(Collection((made(),), "run", 0, "policy", warm_up=True), rules())
    with pytest.raises(ConfigError, match="use training_type: sft"):
        rows(demonstration("yes"))


# ------------------------------------------------------------------------------------------------------------------- split


def examples_of(items):
    return {item.provenance.example_id for item in items}


def test_no_example_and_no_context_is_on_both_sides():
    items = [
        made({"role": "user", "content": f"position {n % 7}"}, example=n, chosen=f"a{k}") for n in range(20) for k in range(3)
    ]
    found = rows(*items)
    assert not examples_of(found.training) & examples_of(found.validation)
    said = [{item.context[0]["content"] for item in side} for side in (found.training, found.validation)]
    assert not said[0] & said[1]
    assert len(found.training) + len(found.validation) == 60
    assert examples_of(found.validation)


def test_a_fifth_of_the_examples_drawn_by_the_seed():
    items = [made({"role": "user", "content": f"position {n}"}, example=n) for n in range(20)]
    first, again, other = rows(*items), rows(*items), rows(*items, given=rules(seed=8))
    assert len(first.validation) == 4
    assert first.validation == again.validation
    assert first.validation != other.validation


def test_rows_of_one_task_stay_together():
    items = [made({"role": "user", "content": f"position {n}"}, example=n, task_key=f"t{n // 5}") for n in range(20)]
    assert len({item.provenance.task_key for item in rows(*items).validation}) == 1
    assert len(rows(*items).validation) == 5


def test_one_example_has_no_validation_and_it_is_said():
    found = rows(made(chosen="a"), made(chosen="b"))
    assert (len(found.training), found.validation) == (2, ())
    assert "all rows are of one example" in found.notes[0]
    assert "validation_split: 0" in rows(made(), made(example=2), given=rules(split=0)).notes[0]


def test_two_examples_are_one_and_one():
    found = rows(made(example=1), made({"role": "user", "content": "other"}, example="1"))
    assert (len(found.training), len(found.validation)) == (1, 1)


# -------------------------------------------------------------------------------------------------------- weights and sides


def test_agreement_is_written_as_often_as_it_weighs():
    found = rows(made(weight=1.6), made(example=2, chosen="3", weight=0.8), given=rules(split=0))
    assert found.copies == (2, 1)
    assert len(written(found)) == 3
    assert any("several people agreed" in note for note in found.notes)


@pytest.mark.parametrize("weights", [(1.0, 1.5), (1.0, 60.0), (0.0, 1.0)])
def test_weights_that_rows_can_not_say_are_refused(weights):
    with pytest.raises(ConfigError, match="no place for weights"):
        rows(made(weight=weights[0]), made(example=2, weight=weights[1]))


def test_of_pairs_the_best_completion_is_imitated_once():
    items = [made(chosen="a", rejected="b"), made(chosen="b", rejected="c"), made(chosen="a", rejected="c")]
    found = rows(*items, given=rules("sft", split=0))
    assert written(found) == [{"messages": [USER, {"role": "assistant", "content": "a"}]}]
    assert [drop.reason for drop in found.dropped] == [DropReason.NOT_BEST, DropReason.DUPLICATE]


def test_demonstrations_are_conversations():
    items = [demonstration("yes", text="so?"), replace(demonstration("yes", text="so?"), weight=2.0)]
    found = rows(*items, given=rules("sft", split=0))
    conversation = {"messages": [{"role": "user", "content": "so?"}, {"role": "assistant", "content": "yes"}]}
    assert written(found) == [conversation] * 3


def test_what_is_kept_and_dropped_adds_up():
    items = [pair(f"{n}", "no", text="move", example=n) for n in range(4)] + [made(USER, {"role": "assistant", "content": "x"})]
    found = rows(*items)
    assert len(found.training) + len(found.validation) + len(found.dropped) == 5
