"""How many leaks are found: near-duplicates and paraphrases planted among templated insurance claims, and false alarms.

    python benchmarks/leaks.py [--records 6000] [--planted 200] [--threshold 0.5] [--seed 7] [--output leaks.json]

Every record is a template with its slots filled; a planted one is a copy of a record with small edits (a near-duplicate), or
the same claim told by another template with its figures written otherwise (a paraphrase). A couple of records that is found and
was not planted is a false alarm: the claims are different ones, however alike their wording is.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from pathlib import Path

from nat_finetune.data.near_duplicates import THRESHOLD, near_duplicates


def _words(text: str) -> list[str]:
    return text.split()


FIRST = _words("Anna Ben Carla David Elena Farid Greta Henry Ines Jonas Katja Liam Mona Nils Olga Paul Rosa Samir Tessa Viktor")
LAST = _words("Adler Brandt Costa Duarte Engel Fischer Grant Hoang Jansen Keller Lopez Moreau Novak Okafor Petrov Quinn")
PLACES = _words("Leeds Porto Ghent Malmo Turin Lyon Graz Bergen Cork Bilbao Aarhus Utrecht Gdansk Split Varna Zagreb")
THINGS = ["hatchback", "delivery van", "estate car", "motorbike", "kitchen floor", "roof", "garden shed", "washing machine"]
CAUSES = ["hail", "a burst pipe", "a rear-end collision", "a fallen tree", "theft", "a short circuit", "flooding", "vandalism"]
PARTS = ["left door", "windscreen", "rear bumper", "ceiling", "wooden panels", "side mirror", "wiring", "lock", "tiles"]
MONTHS = _words("January February March April May June July August September October November December")

TEMPLATES = [
    "Policyholder {name} reports damage to the {thing} in {place} on {date}. The cause given is {cause}. The {part} has to be "
    "replaced and the workshop estimates {amount} euros. The policy {policy} carries a deductible of {deductible} euros. "
    "Please review whether the claim is covered and draft a recommendation that cites the clause.",
    "Claim under policy {policy}. On {date} the {thing} of {name} was damaged by {cause} in {place}. Estimated repair costs: "
    "{amount} euros for the {part}. Agreed deductible: {deductible} euros. Draft an explanation for the reviewer; do not "
    "authorise any payment.",
    "You review insurance claims and explain your recommendation. {name} from {place} claims {amount} euros for the {part} of "
    "the {thing}. The event was {cause} and happened on {date}. The deductible of contract {policy} is {deductible} euros. "
    "What do you recommend, and under which clause?",
    "{name} writes: on {date} my {thing} in {place} was hit by {cause}, and the {part} is beyond repair. I was quoted {amount} "
    "euros. My policy is {policy} and I know that I pay the first {deductible} euros myself. Decide nothing, explain what the "
    "reviewer should look at.",
]


def claim(generator: random.Random) -> dict[str, object]:
    """A claim's facts."""
    return {
        "name": f"{generator.choice(FIRST)} {generator.choice(LAST)}",
        "place": generator.choice(PLACES),
        "thing": generator.choice(THINGS),
        "cause": generator.choice(CAUSES),
        "part": generator.choice(PARTS),
        "day": (generator.randint(1, 28), generator.randrange(12), generator.choice([2024, 2025])),
        "cents": generator.randint(20_000, 900_000),
        "deductible": generator.choice([150, 300, 500, 1000]),
        "policy": f"{generator.choice('ABCDEFGH')}-{generator.randint(1, 500)}",
    }


def told(facts: dict[str, object], template: int) -> str:
    """The claim in a template's words."""
    day, month, year = facts["day"]
    amount = f"{facts['cents'] / 100:,.2f}"
    return TEMPLATES[template].format(**facts, date=f"{day} {MONTHS[month]} {year}", amount=amount)


def paraphrased(facts: dict[str, object], template: int) -> str:
    """The same claim by another template, with amount and date written otherwise."""
    day, month, year = facts["day"]
    amount = f"{facts['cents'] / 100:.2f}".replace(".", ",")
    return TEMPLATES[(template + 1) % len(TEMPLATES)].format(**facts, date=f"{year}-{month + 1:02}-{day:02}", amount=amount)


def edited(text: str, kind: str, generator: random.Random) -> str:
    """A near-duplicate of a text."""
    words = text.split()
    if kind == "case and punctuation":
        return text.upper().replace(".", " . ").replace(",", " ,") if generator.random() < 0.5 else text.replace(". ", " - ")
    if kind == "typo":
        place = generator.choice([i for i, word in enumerate(words) if word.isalpha() and len(word) > 4])
        words[place] = words[place][:2] + words[place][3:]
        return " ".join(words)
    if kind == "three words changed":
        for place in generator.sample([i for i, word in enumerate(words) if word.islower()], 3):
            words[place] = "indeed"
        return " ".join(words)
    if kind == "sentence added":
        return f"Dear team, please look at this one soon. {text} Thank you very much for your help."
    sentences = text.split(". ")
    generator.shuffle(sentences)
    return ". ".join(sentences)


KINDS = ("case and punctuation", "typo", "three words changed", "sentence added", "sentences shuffled")


def measure(records: int, planted: int, threshold: float, seed: int) -> dict[str, object]:
    """Plant, look, count."""
    generator = random.Random(seed)
    facts = [claim(generator) for _ in range(records)]
    templates = [generator.randrange(len(TEMPLATES)) for _ in range(records)]
    texts = [told(fact, template) for fact, template in zip(facts, templates, strict=True)]
    origin = generator.sample(range(records), 2 * planted)
    kinds: dict[int, str] = {}
    for number, place in enumerate(origin[:planted]):
        kinds[len(texts)] = KINDS[number % len(KINDS)]
        texts.append(edited(texts[place], KINDS[number % len(KINDS)], generator))
    for place in origin[planted:]:
        kinds[len(texts)] = "paraphrase"
        texts.append(paraphrased(facts[place], templates[place]))
    began = time.perf_counter()
    found = near_duplicates(texts, threshold=threshold, seed=seed)
    seconds = time.perf_counter() - began
    truth = {(place, records + number) for number, place in enumerate(origin)}
    couples = {(couple.first, couple.second) for couple in found}
    caught = [kinds[second] for _, second in couples & truth]
    false_alarms = couples - truth
    return {
        "records": len(texts),
        "threshold": threshold,
        "near_duplicates_caught": sum(kind != "paraphrase" for kind in caught),
        "by_kind": {kind: f"{caught.count(kind)} of {sum(k == kind for k in kinds.values())}" for kind in KINDS},
        "paraphrases_caught": caught.count("paraphrase"),
        "planted_of_each": planted,
        "false_alarms": len(false_alarms),
        "records_in_a_false_alarm": len({place for couple in false_alarms for place in couple}),
        "seconds": round(seconds, 2),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=6000)
    parser.add_argument("--planted", type=int, default=200)
    parser.add_argument("--threshold", type=float, default=THRESHOLD)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.records, arguments.planted, arguments.threshold, arguments.seed)
    text = json.dumps(result, indent=2)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
