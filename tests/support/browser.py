"""Open a page in headless Chromium at several widths, and measure what it shows."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (400, 1280)  # pixels: a telephone, a laptop
LIGHT, DARK = 1, 0  # Chromium's preferredColorScheme

PRINTED = """(page) => {
  const seen = (sign) => [...page.querySelectorAll(sign)];
  const cut = () => seen(".box, .scroll").filter((e) => e.scrollHeight > e.clientHeight + 1).length;
  const scrolled = cut();
  for (const sheet of page.styleSheets) for (const rule of sheet.cssRules)
    if (rule.media?.mediaText === "print") rule.media.mediaText = "all";
  const kept = seen(".legend i").map((sign) => getComputedStyle(sign).printColorAdjust);
  return { scrolled, cut: cut(), signs: [...new Set(kept)] };
}"""  # how many tables scroll, how many are cut on paper, and how their legends are printed

_MEASURE = """<!doctype html><body><script>
const seen = SEEN;
const frames = [], report = {};
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "PAGE";
  frames.push(new Promise((done) => frame.onload = () => done([width, frame.contentDocument])));
  document.body.append(frame);
}
Promise.all(frames).then((pages) => {
  for (const [width, page] of pages) {
    for (const details of page.querySelectorAll("details")) details.open = true;
    report[width] = {
      scroll: page.documentElement.scrollWidth,
      wide: [...page.querySelectorAll("body *")].filter((e) => !e.closest("BOXES, svg")
        && e.getBoundingClientRect().right > width + 0.5).map((e) => e.tagName),
      back: getComputedStyle(page.body).backgroundColor.match(/[0-9]+/g).map(Number),
      ...seen(page),
    };
  }
  const out = document.createElement("pre");
  out.id = "out"; out.textContent = JSON.stringify(report); document.body.append(out);
});
</script>"""


def chromium() -> str:
    """Return the browser's path; skip the test if there is none."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("2026-11-22: no Chromium is installed; .ci/run installs it where it can")
    return browser


def measured(
    page: Path,
    folder: Path,
    seen: str,
    boxes: str,
    widths: Sequence[int] = WIDTHS,
    scheme: int = LIGHT,
) -> dict[str, dict[str, Any]]:
    """Return by width what the JavaScript function `seen` finds in the page, and three facts.

    `scroll` is the page's width, `wide` the elements beyond the window, except those in `boxes` (a
    CSS selector of what scrolls on its own), and `back` the background's red, green and blue.
    Fails if the browser writes something to its console.
    """
    text = _MEASURE.replace("SEEN", seen).replace("WIDTHS", str([*widths]))
    (folder / "measure.html").write_text(
        text.replace("PAGE", page.as_uri()).replace("BOXES", boxes)
    )
    done = subprocess.run(
        [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--allow-file-access-from-files", "--enable-logging=stderr", "--hide-scrollbars",
         f"--blink-settings=preferredColorScheme={scheme}",
         "--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1400,1000", "--dump-dom", (folder / "measure.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    match = re.search(r'<pre id="out">(.*?)</pre>', done.stdout)
    assert match, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(unescape(match[1]))
    return found
