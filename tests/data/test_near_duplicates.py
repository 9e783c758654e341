"""Near-duplicates: edits are found, templates are not, and nothing depends on chance."""

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest

from benchmarks.leaks import KINDS, measure
from nat_finetune.data.near_duplicates import near_duplicates, normal_form

STORY = (
    "The harbour pilot noticed at dawn that two of the mooring lines had chafed through, woke the crew, and moved the "
    "vessel to the inner basin before the storm arrived from the west."
)


def couples(texts, **options):
    return [(found.first, found.second) for found in near_duplicates(texts, **options)]


@pytest.mark.parametrize(
    "other",
    [
        STORY.upper().replace(",", " ;"),
        STORY.replace("chafed", "chaffed"),
        STORY.replace("noticed at dawn", "saw in the morning"),
        f"Please summarise. {STORY} Thank you.",
    ],
)
def test_edits_are_found(other):
    assert couples([STORY, "Quite another matter altogether.", other]) == [(0, 2)]


def test_equal_but_for_case_and_punctuation_is_1():
    (found,) = near_duplicates(["Add 3 and 4!", "add  3 AND 4"])
    assert found.similarity == 1.0
    assert normal_form("Pay € 1,250.00 (no. 12-A)") == "pay 1,250.00 no 12-a"


def test_templates_are_not_merged():
    sums = [
        f"You are a careful calculator. What is {a} plus {b}? Answer with a number only." for a in range(20) for b in range(20)
    ]
    assert couples(sums) == []


def test_a_long_template_with_short_slots_is_not_merged():
    """The template outweighs the slots unless it is left out: each of three templates is in a third of the texts."""
    templates = [" ".join(f"word{i}of{t}" for i in range(300)) for t in range(3)]
    assert couples([f"{templates[i % 3]} item{i} price{i}" for i in range(150)]) == []


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_similarity_is_the_cosine_of_rarity_weights(share):
    """By hand: words w0..w9 in a row; the first `share` of them are equal in both texts."""
    same = round(share * 10)
    one = [f"w{i}" for i in range(10)]
    other = [*one[:same], *[f"v{i}" for i in range(same, 10)]]
    shingles = [{*words, *(tuple(words[i : i + 3]) for i in range(8))} for words in (one, other)]
    weight = {s: np.log(1 + 2 / (1 + (s in shingles[0] and s in shingles[1]))) for s in shingles[0] | shingles[1]}
    norms = [np.sqrt(sum(weight[s] ** 2 for s in text)) for text in shingles]
    cosine = sum(weight[s] ** 2 for s in shingles[0] & shingles[1]) / norms[0] / norms[1]
    found = near_duplicates([" ".join(one), " ".join(other)], threshold=0.01)
    assert [f.similarity for f in found] == pytest.approx([cosine] if found else [], rel=1e-5)
    assert found or share < 0.5  # banding may leave out a couple that has little in common


def test_planted_near_duplicates_among_templated_records():
    found = measure(records=600, planted=40, threshold=0.5, seed=3)
    assert found["near_duplicates_caught"] >= 38, found["by_kind"]
    assert set(found["by_kind"]) == set(KINDS)
    assert found["false_alarms"] <= 2


def test_all_couples_of_a_family_and_the_threshold():
    family = [STORY, STORY.replace("dawn", "noon"), STORY.replace("west", "east")]
    assert couples(family) == list(combinations(range(3), 2))
    assert couples(family, threshold=0.99) == []


def test_texts_without_words_are_alike_only_if_equal():
    assert couples(["!!!", "?", "a"]) == [(0, 1)]  # neither has a word
    assert couples([]) == []


def test_the_same_in_every_process():
    program = "from benchmarks.leaks import measure as m; r = m(300, 30, 0.5, 1); print(sorted(r.items())[:6])"
    runs = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", program]
        runs.add(subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}).stdout)
    assert len(runs) == 1
