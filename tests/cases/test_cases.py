"""NAT's inputs with nat-finetune's right answers: every file of the folder `CASES_DIR`, or of the copy beside this file."""

import json
import math
import os
from collections import Counter
from pathlib import Path

import pytest

from nat_finetune.builders.dpo import DPOTrajBuilder, DPOTrajBuilderConfig
from nat_finetune.data.curriculum import CurriculumRules, select_groups
from nat_finetune.data.keys import example_key, require_unique
from nat_finetune.data.preparation import draw_pairs, record, split_by_example
from nat_finetune.data.selection import contradictions, deduplicate
from nat_finetune.errors import ConfigError, DataError, NoTrainableSignal
from nat_finetune.types import CandidateScored, Dropped, PreferencePair, Provenance, Rollout, Target, as_messages

FOLDER = Path(os.environ.get("CASES_DIR", Path(__file__).parent))
FILES = sorted(FOLDER.rglob("*.json"))
FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
TARGET = Target(("<workflow>",), "policy")


def test_there_are_cases():
    assert len(FILES) > 30 or "CASES_DIR" in os.environ


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path):
    case = json.loads(path.read_text(encoding="utf-8"))
    RUNNERS[case["target"]](case)


# ------------------------------------------------------------------------------------------------------------- the builder


def rollout_of(example):
    events = [
        CandidateScored(
            rollout_id=repr(example["id"]),
            seq=seq,
            path=("<workflow>",),
            start=0.0,
            end=0.0,
            step_name=event.get("name", "dpo_candidate_move"),
            turn_id=event.get("turn_id"),
            candidate_index=event.get("candidate_index"),
            input=event.get("input"),
            output=event.get("output"),
            score=FLOATS.get(event["score"], event["score"]) if isinstance(event.get("score"), str) else event.get("score"),
        )
        for seq, event in enumerate(example["events"])
        if event.get("event_type", "TTC_END") == "TTC_END"
    ]
    return Rollout(repr(example["id"]), example["id"], 0, 0, tuple(events))


def run_builder(case):
    right, examples = case["right"], case["input"]["examples"]
    config = DPOTrajBuilderConfig(**case["config"])
    builder = DPOTrajBuilder(config, TARGET)
    if "error" in right:
        with pytest.raises(DataError, match=right["error"]) as raised:
            build(builder, examples)
        for name in right.get("names", ()):
            assert repr(name) in str(raised.value) or example_key(name) in str(raised.value)
        return
    made = build(builder, examples)
    by_example = {}
    for pair in made:
        if isinstance(pair, PreferencePair):
            by_example.setdefault(example_key(pair.provenance.example_id), []).append(pair)
    trajectories = [[shown(pair, exhaustive=config.exhaustive_pairs) for pair in pairs] for pairs in by_example.values()]
    assert_equal(trajectories, right["trajectories"])
    counts = builder.counts
    assert right["metrics"] == {
        "total_examples": counts.examples_with_pair,
        "total_turns": counts.turns,
        "total_candidates": counts.candidates,
        "total_pairs": counts.pairs,
        "total_trajectories": counts.pairs,
        "skipped_single_candidate": counts.single_candidate,
        "skipped_score_diff": counts.score_diff,
    }
    assert_dropped([item for item in made if isinstance(item, Dropped)], right)


def build(builder, examples):
    require_unique([example["id"] for example in examples])
    return list(builder.build(rollout_of(example) for example in examples))


def shown(pair, *, exhaustive):
    where = pair.provenance
    return {
        "prompt": pair.context_text if pair.context_text is not None else [dict(m) for m in pair.context],
        "chosen_response": pair.chosen,
        "rejected_response": pair.rejected,
        "reward": pair.reward,
        "metadata": {
            "example_id": where.example_id,
            "turn_id": where.turn_id,
            "chosen_index": where.chosen_index,
            "rejected_index": where.rejected_index,
            "chosen_score": pair.chosen_score,
            "rejected_score": pair.rejected_score,
            "score_diff": pair.margin,
            **({} if exhaustive else {"num_candidates": where.candidates}),
        },
    }


# ------------------------------------------------------------------------------------------------------------- the dataset


def pair_of(prompt, chosen="c", rejected="r", example_id="e"):
    return PreferencePair(
        context=as_messages(prompt),
        context_text=prompt if isinstance(prompt, str) else None,
        chosen=chosen,
        rejected=rejected,
        provenance=Provenance(example_id),
    )


def run_records(case):
    right, full = case["right"], case["config"].get("use_full_message_history", False)
    if "prompts" in case["input"]:
        pairs = [pair_of(prompt, "A", "B", f"e{index}") for index, prompt in enumerate(case["input"]["prompts"])]
    else:
        pairs = [pair_of(*row) for row in case["input"]["pairs"]]
    if "error" in right:
        with pytest.raises(DataError, match=right["error"]):
            [record(pair, use_full_message_history=full) for pair in pairs]
        return
    if "records" in right:
        assert [record(pair, use_full_message_history=full) for pair in pairs] == right["records"]
        return
    contract = right["contract"]
    training, validation = split_by_example(pairs, seed=3)
    assert (training, validation) == split_by_example(pairs, seed=3)
    examples = [{pair.provenance.example_id for pair in side} for side in (training, validation)]
    assert not examples[0] & examples[1]
    assert [len(side) for side in examples] == [contract["training_examples"], contract["validation_examples"]]
    assert len(training) + len(validation) == contract["pairs"]
    records = {}
    for pair in [*training, *validation]:
        records.setdefault(pair.provenance.example_id, []).append(record(pair, use_full_message_history=full))
    assert records == contract["records_by_example"]


def run_sample(case):
    contract, size = case["right"]["contract"], case["input"]["groups_of"]
    count = case["config"]["max_pairs"]
    pairs = [pair_of(f"p{i}", example_id=f"e{i // size}") for i in range(case["input"]["n"])]
    kept, dropped = draw_pairs(pairs, count, seed=1)
    assert len(kept) == contract["count"]
    assert [pair for pair in pairs if pair in kept] == kept
    assert (kept, dropped) == draw_pairs(pairs, count, seed=1)
    groups = {pair.provenance.example_id for pair in kept}
    assert contract["fewest_groups"] <= len(groups) <= contract["most_groups"]
    assert draw_pairs(pairs, len(pairs), seed=1) == (pairs, [])
    assert_dropped(dropped, case["right"])


def run_dedup(case):
    """Duplicates: the pairs that stay, by example; the rest counted; those preferred both ways counted once."""
    right = case["right"]
    kept, dropped = deduplicate([pair_of(*fields) for fields in pair_fields(case["input"])])
    groups = {}
    for pair in kept:
        groups.setdefault(example_key(pair.provenance.example_id), []).append(pair)
    found = [[(pair.context_text, pair.chosen, pair.rejected) for pair in group] for group in groups.values()]
    wanted = right.get("groups", right.get("trajectories"))
    if wanted is not None:
        assert found == [
            [(row["prompt"], row["chosen_response"], row["rejected_response"]) for row in group] for group in wanted
        ]
    assert contradictions(kept) == right.get("contradictions", 0)
    assert_dropped(dropped, right)


def pair_fields(given):
    """(prompt, chosen, rejected, example id) of a list of rows or of groups of records."""
    if "pairs" in given:
        return given["pairs"]
    groups = given.get("groups", given.get("trajectories"))
    return [
        (row["prompt"], row["chosen_response"], row["rejected_response"], row.get("example_id", f"e{index}"))
        for index, group in enumerate(groups)
        for row in group
    ]


# ---------------------------------------------------------------------------------------------------------- the curriculum


def run_curriculum(case):
    right = case["right"]
    if right.get("error") == "config":
        with pytest.raises(ConfigError, match="config"):
            CurriculumRules(**case["config"])
        return
    rules = CurriculumRules(**case["config"])
    epochs, names = [], []
    for groups in case["input"]["epochs"]:
        given = [group if isinstance(group, dict) else {"rewards": group} for group in groups]
        epochs.append([[FLOATS.get(r, r) if isinstance(r, str) else r for r in group["rewards"]] for group in given])
        ids = case["input"].get("example_ids", [f"group_{index}" for index in range(len(given))])
        names.append([group.get("example_id", group.get("id", name)) for group, name in zip(given, ids, strict=True)])
    if "error" in right:
        with pytest.raises(NoTrainableSignal, match=right["error"]):
            [select_groups(groups, rules, epoch=epoch, seed=5) for epoch, groups in enumerate(epochs)]
        return
    expected = right["contract"]["epochs"] if "contract" in right else right["epochs"]
    assert len(expected) == len(epochs)
    for epoch, (groups, want) in enumerate(zip(epochs, expected, strict=True)):
        selected = select_groups(groups, rules, epoch=epoch, seed=5)
        assert selected == select_groups(groups, rules, epoch=epoch, seed=5)
        assert list(selected.groups) == want["selected_groups_in_order"]
        assert want["state"] == {
            "current_percentile": pytest.approx(selected.percentile, abs=1e-9),
            "last_expansion_epoch": selected.last_expansion_epoch,
            "total_groups": selected.kept_groups,
            "included_groups": [names[epoch][i] for i in sorted(selected.groups)] if rules.enabled else [],
        }
        rewards = [
            [groups[position][i] for i in members] for position, members in zip(selected.groups, selected.members, strict=True)
        ]
        if "contract" in right:
            assert [len(group) for group in rewards] == want["trajectories_kept_per_group"]
            for group, source in zip(rewards, want["drawn_from"], strict=True):
                assert not Counter(group) - Counter(source)
        else:
            assert_equal(rewards, want["selected_rewards"])
            assert_dropped(selected.dropped, want)


RUNNERS = {
    "dpo_traj_builder.finalize": run_builder,
    "nemo_customizer_trainer_adapter._trajectory_to_dpo_jsonl": run_records,
    "nemo_customizer_trainer._deduplicate_trajectories": run_dedup,
    "nemo_customizer_trainer._sample_trajectories": run_sample,
    "openpipe_art_trainer.apply_curriculum_learning": run_curriculum,
}


def assert_dropped(dropped, right):
    found = Counter((drop.what, drop.reason.value) for drop in dropped)
    assert found == Counter({(row["what"], row["reason"]): row["count"] for row in right.get("dropped", [])})


def assert_equal(found, expected):
    """Equal, numbers to 1e-9, types of ids included."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, float) or isinstance(found, float):
        assert found == pytest.approx(expected, abs=1e-9)
    else:
        assert type(found) is type(expected)
        assert found == expected
