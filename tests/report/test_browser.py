"""The report in headless Chromium: it loads without a complaint and fits on a desktop and on a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess

import pytest

from nat_finetune.report.html import render
from tests.fixtures.reports import full_report, minimal_report

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH (.ci/run installs it)")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--hide-scrollbars")  # fmt: skip
MEASURE = """
<meta charset="utf-8"><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<script>
function measure(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(part => part.open = true);
  const out = document.createElement("pre");
  const wide = [...page.querySelectorAll("body *")].filter(part => !part.closest(".scroll, svg")
    && part.getBoundingClientRect().right > root.clientWidth + 0.5).map(part => part.outerHTML.slice(0, 120));
  out.textContent = "MEASURED" + JSON.stringify({width: root.clientWidth, overflow: root.scrollWidth - root.clientWidth,
    height: root.scrollHeight, scripts: page.scripts.length, images: page.images.length, wide,
    ink: getComputedStyle(page.body).color, paper: getComputedStyle(page.body).backgroundColor}) + "END";
  document.body.append(out);
}
</script>
"""


def browse(page, folder, *, widths=(1280, 390), flags=()):
    """What Chromium says of a page in frames of these widths, every fold opened, and what it complains of."""
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px" onload="measure(this)" srcdoc="{html.escape(page)}"></iframe>'
        for width in widths
    )
    (folder / "frames.html").write_text(f"{MEASURE}{frames}", encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    where = (folder / "frames.html").as_uri()
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, profile, "--dump-dom", where], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(html.unescape(text)) for text in re.findall(r"MEASURED(\{.*?\})END</pre>", done.stdout)]
    assert sorted(measured["width"] for measured in found) == sorted(widths), done.stdout[-2000:]
    return found, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("report", [full_report(), full_report(steps=1), minimal_report()], ids=["full", "one step", "failed"])
def test_it_loads_and_fits(report, tmp_path):
    found, complaints = browse(render(report), tmp_path)
    assert complaints == []
    for measured in found:
        assert (measured["overflow"], measured["wide"]) == (0, []), f"at {measured['width']} px"
        assert (measured["scripts"], measured["images"]) == (0, 0)
        assert measured["height"] > 300


def test_a_complaint_and_an_overflow_would_be_seen(tmp_path):
    page = render(minimal_report()).replace("</main>", '<script>1</script><p style="width:2000px">wide</p></main>')
    found, complaints = browse(page, tmp_path)
    assert complaints
    assert "Content Security Policy" in complaints[0]
    assert all(measured["overflow"] > 0 and measured["wide"] for measured in found)


def test_dark_where_the_system_is(tmp_path):
    light, _ = browse(render(minimal_report()), tmp_path, widths=(800,))
    dark, _ = browse(render(minimal_report()), tmp_path, widths=(800,), flags=("--blink-settings=preferredColorScheme=0",))
    assert brightness(light[0]["paper"]) > brightness(light[0]["ink"]) + 150
    assert brightness(dark[0]["ink"]) > brightness(dark[0]["paper"]) + 150


def brightness(color):
    return sum(int(part) for part in re.findall(r"\d+", color)[:3]) / 3
