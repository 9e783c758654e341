"""Curves, scales and round values on their axes."""

from __future__ import annotations

import re

import pytest

from nat_finetune.report.plots import HEIGHT, LEFT, RIGHT, WIDTH, Point, Scale, comparison, curve, thinned, ticks


@pytest.mark.parametrize(
    ("bottom", "top", "expected"),
    [
        (0.48, 0.93, [0.5, 0.6, 0.7, 0.8, 0.9]),
        (-0.12, 0.11, [-0.1, -0.05, 0.0, 0.05, 0.1]),
        (0.0, 30.0, [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]),
        (0.0, 4.98e-14, [0.0, 1e-14, 2e-14, 3e-14, 4e-14]),
        (1.0, 1.0, [1.0]),
        (1e6, 1.3e6, [1e6, 1.05e6, 1.1e6, 1.15e6, 1.2e6, 1.25e6, 1.3e6]),
    ],
)
def test_ticks_are_round(bottom, top, expected):
    assert ticks(bottom, top) == pytest.approx(expected)


@pytest.mark.parametrize("top", [1.0, 3.7, 0.02, 1e9, 1e-9])
def test_ticks_are_few_and_inside(top):
    found = ticks(-top / 3, top)
    assert 3 <= len(found) <= 7
    assert -top / 3 <= found[0] < found[-1] <= top


def places(svg):
    text = re.search(r'<polyline class="line" points="([^"]*)"', svg)[1]
    return [tuple(float(part) for part in pair.split(",")) for pair in text.split()]


def test_a_curve_goes_from_edge_to_edge_and_up_is_more():
    found = places(curve("t", [Point(0, 1.0), Point(5, 3.0), Point(10, 2.0)]))
    assert [x for x, _ in found] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    assert found[1][1] < found[2][1] < found[0][1] < HEIGHT


def test_one_point_and_none():
    assert places(curve("t", [Point(3, 1.0)])) == [((LEFT + WIDTH - RIGHT) / 2, pytest.approx(83, abs=10))]
    assert curve("t", []) is None
    assert curve("t", [Point(0, float("nan"))]) is None


def test_the_band_is_of_the_points_with_an_interval():
    points = [Point(0, 1, 0.5, 1.5), Point(1, 1), Point(2, 1, 0.9, 1.1)]
    band = re.search(r'<polygon class="band" points="([^"]*)"', curve("t", points))[1]
    assert len(band.split()) == 4


def test_names_of_close_lines_stand_apart():
    svg = curve("t", [Point(0, 0.0), Point(1, 1.0)], lines={"one": 0.5, "other": 0.51})
    heights = [float(y) for y, name in re.findall(r'y="([\d.]+)" text-anchor="end">(one|other)', svg)]
    assert abs(heights[0] - heights[1]) >= 12


def test_titles_are_escaped():
    assert "<b>" not in curve("<b>", [Point(0, 1.0)], lines={"<b>": 1.0})


def estimate(mean, low=None, high=None):
    return {"mean": mean, "low": low, "high": high}


def test_a_share_is_seen_on_the_whole_scale():
    html = comparison({"before": estimate(0.25, 0.2, 0.4), "after": estimate(0.75)}, {"uniform": 0.5})
    assert 'class="point before" style="left:25.00%' in html
    assert 'class="whisker before" style="left:20.00%;width:20.00%' in html
    assert 'class="point after" style="left:75.00%' in html
    assert html.count("whisker") == 1
    assert "uniform 0.500" in html
    assert 'aria-label="before 0.250; after 0.750"' in html


def test_other_values_get_a_scale_of_their_own():
    html = comparison({"before": estimate(-10.0), "after": estimate(30.0)}, {})
    assert "left:2.00%" in html
    assert "left:98.00%" in html


def test_what_is_not_known_is_not_drawn():
    assert comparison({"before": None, "after": estimate(None)}, {"uniform": 0.5}) is None
    assert 'class="point before"' not in comparison({"before": None, "after": estimate(0.5)}, {})


def test_a_scale_that_is_a_point():
    assert Scale(1.0, 1.0, 0.0, 100.0).at(1.0) == 50.0


def test_a_long_curve_keeps_its_ends_and_its_spikes():
    points = [Point(float(x), 1.0) for x in range(5_000)]
    points[2_345] = Point(2_345.0, 50.0)
    points[4_000] = Point(4_000.0, -50.0)
    thin = thinned(points, 240)
    assert len(thin) <= 240
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    assert {50.0, -50.0} <= {p.y for p in thin}
    assert [p.x for p in thin] == sorted(p.x for p in thin)
    assert thinned(points[:240], 240) == points[:240]
