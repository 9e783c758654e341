"""The report's page: everything on it, nothing unknown made up, nothing hostile alive."""

from __future__ import annotations

import copy
from html.parser import HTMLParser

import pytest

from nat_finetune.report.html import render
from nat_finetune.report.transcripts import LONGEST_TEXT
from tests.fixtures.reports import EVIL, full_report, minimal_report

VOID = {"meta", "link", "br", "img", "input", "hr"}
LOADING = {"src", "href", "srcset", "data", "action", "poster", "style"}


class Page(HTMLParser):
    """Elements, their attributes and texts; complains about tags that don't match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(" ".join(data.split()))

    @property
    def text(self):
        return " | ".join(text for text in self.texts if text)

    def of(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def full():
    return Page(render(full_report()))


def test_the_headline_comes_first(full):
    start = full.text.index("| improved |")
    assert start < full.text.index("outcome 0.621 → 0.903, gain +0.282") < full.text.index("Warnings")


@pytest.mark.parametrize(
    "expected",
    [
        "outcome | 0.621 | [0.561, 0.681] | 0.903 | [0.843, 0.963] | +0.282 | [+0.212, +0.362] | 14",
        "legal rate | 0.930 | [0.870, 0.990] | unknown | unknown | unknown | unknown | unknown",
        "uniform 0.574 | best response 0.988",
        "step 12: nothing to train on, no update",
        "| It may mean: it pays. | To do: read.",
        "clip fraction | share of tokens | 0.01 | 0.01 | 0.01 | 0.01",
        "kl previous | nats a token | 0.002",
        "700,000 parameters, 650,000 of them trained",
        "train set | 64 examples, 32 tasks",
        "12 failed through no fault of the policy",
        "trained | 9,120 | 18,240 | 4.2 %",
        "all | 15,032 | 432,060 | 100.0 %",
        "group | flat group | 1,212",
        "12 | 128 | 0 | unknown | 14 | 2 | 8,000 | no update | 5.0",
        "collect | 80.1 s",
        "last step · 29/7/0 · outcome unknown ·",
        "choose_move · policy · trained · ended by tool_calls",
        "after the 2 messages above",
        "<workflow> · opponent · not trained",
        "git commit | 0123456789abcdef",
        "packages peft | unknown",
        "git dirty | yes",
        "_type: local",
    ],
)
def test_it_is_all_there(full, expected):
    assert expected in full.text


def test_hostile_texts_are_texts(full):
    assert full.of("script") == full.of("img") == full.of("iframe") == []
    assert full.text.count(EVIL) >= 8
    assert not any(name.startswith("on") for _, attrs in full.elements for name in attrs)


def test_nothing_is_fetched(full):
    loads = {(tag, name, value) for tag, attrs in full.elements for name, value in attrs.items() if name in LOADING}
    assert all(name == "style" or value == "data:," for _, name, value in loads)
    page = render(full_report())
    assert "url(" not in page
    assert "@import" not in page
    policy = next(attrs["content"] for attrs in full.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script" not in policy


def test_what_a_screen_reader_needs(full):
    assert full.of("html")[0]["lang"] == "en"
    assert len(full.of("h1")) == len(full.of("main")) == 1
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in full.of("svg"))
    ids = [attrs["id"] for _, attrs in full.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["aria-labelledby"] for _, attrs in full.elements if "aria-labelledby" in attrs} <= set(ids)
    assert all("scope" in attrs for attrs in full.of("th"))


def test_a_long_run_makes_a_small_page():
    page = render(full_report(steps=1_000))
    assert len(page.encode()) < 1_000_000
    assert "1000 steps, 201 of them; metrics.jsonl has all" in page
    assert '<th scope="row" class="n">999</th>' in page


def test_a_run_that_failed_at_once():
    page = Page(render(minimal_report()))
    assert "backend failure · exit code 6 | llms.policy: the folder models/none holds no config.json" in page.text
    assert "name another with `model:`" in page.text
    assert "Not measured" in page.text
    assert "No call was made." in page.text
    assert "model | unknown" in page.text
    assert page.of("svg") == []


def test_unknown_numbers_are_never_zero():
    """Every number of the report turned into null, one at a time: "unknown" appears once more, or a curve loses a point."""
    base = full_report(steps=2)
    whole = render(base)
    assert len(paths(base)) > 60
    for path in paths(base):
        report = copy.deepcopy(base)
        at = report
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = None
        page = render(report)
        assert "None" not in page.replace("default-src 'none'", ""), path
        assert page.count(">0<") + page.count(">0.000<") <= whole.count(">0<") + whole.count(">0.000<"), path


def paths(value, here=()):
    """Where numbers of the report stand that may be unknown."""
    if isinstance(value, dict):
        return [p for key, below in value.items() for p in paths(below, (*here, key))]
    if isinstance(value, list):
        return [p for index, below in enumerate(value) for p in paths(below, (*here, index))]
    certain = {"exit_code", "confidence", "step", "epoch", "dropped", "id", "example_id", "seconds", "reference"}
    return [here] if isinstance(value, float | int) and not isinstance(value, bool) and not certain & set(here) else []


@pytest.mark.parametrize(
    ("reason", "code", "tone"),
    [("improved", 0, "good"), ("worse", 0, "bad"), ("no significant gain", 0, "plain"), ("no data", 3, "bad")],
)
def test_the_tone_is_that_of_the_outcome(reason, code, tone):
    page = Page(render(minimal_report(exit_reason=reason, exit_code=code)))
    assert {"class": f"verdict {tone}"} in page.of("p")


def test_shares_that_do_not_sum_to_all_are_not_hidden():
    report = full_report()
    report["ledger"]["rows"].pop()
    report["ledger"]["rows"].pop()
    assert "100.0 %" not in Page(render(report)).text.split("all |")[1]


def test_a_very_long_reply_is_cut_and_says_so():
    report = full_report()
    report["examples"][0]["turns"][0]["reply"] = "y" * (LONGEST_TEXT + 1_234)
    page = Page(render(report))
    assert "… 1,234 more characters in events.jsonl" in page.text
    assert "y" * (LONGEST_TEXT + 1) not in page.text


def test_numbers_that_are_not_finite_are_not_drawn():
    report = full_report(steps=3)
    report["steps"][1]["update"]["loss"] = float("nan")
    report["steps"][2]["update"]["grad_norm"] = float("inf")
    page = render(report)
    points = [attrs["points"] for attrs in Page(page).of("polyline")]
    assert points
    assert not any("nan" in p or "inf" in p for p in points)
