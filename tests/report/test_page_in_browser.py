"""The report page in a real browser: no error and no request, filters, keyboard, themes, contrast, and 5 000 tensors.

Screenshots are kept in build/report_page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import dovetail
from dovetail.report.page.page import render_page
from dovetail.report.result import Result
from tests.report.browser import PROGRAM, Browser, open_browser
from tests.report.page_results import digits_run, hostile, with_everything, with_tensors

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="the Debian package chromium is not installed")

SCREENSHOTS = Path(__file__).parents[2] / "build/report_page"
# The ratio of the WCAG, level AA, for normal text.
_CONTRAST = 4.5
_LOW_CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgb(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgb('white');
  };
  const low = [];
  let count = 0;
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const unseen = ['SCRIPT', 'STYLE', 'title', 'desc'].includes(element.tagName);
    if (!own || unseen || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const front = rgb(element.tagName === 'text' ? style.fill : style.color);
    const [a, b] = [light(front), light(behind(element))].sort((x, y) => y - x);
    count += 1;
    const name = element.tagName + ' ' + element.className + ': ' + element.textContent.slice(0, 40);
    if ((a + 0.05) / (b + 0.05) < LIMIT) low.push(name);
  }
  return {count, low: [...new Set(low)]};
})()
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return with_everything(dovetail.load_result(digits_run(tmp_path_factory.mktemp("page")) / "result.json"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def page(result: Result, browser: Browser, tmp_path: Path) -> Browser:
    """The browser with the page of a run."""
    return shown(browser, render_page(result), tmp_path)


def shown(browser: Browser, text: str, folder: Path) -> Browser:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.resize(1200)
    browser.prefer("light")
    browser.open(path)
    return browser


def rows(page: Browser) -> int:
    return int(page.run("document.querySelectorAll('#tensor-table tbody tr').length"))


def first_name(page: Browser) -> str:
    return str(page.run("document.querySelector('#tensor-table tbody th').textContent"))


def test_nothing_is_requested_and_nothing_is_reported(page: Browser) -> None:
    assert page.complaints == []
    assert len(page.requests) == 1, page.requests
    assert page.requests[0].startswith("file://")
    page.run("console.error('seen'); 1")
    assert len(page.complaints) == 1, "the browser tells what the console gets"


def test_tensors_are_searched_filtered_and_sorted(page: Browser) -> None:
    assert rows(page) == 50
    assert "changed" in page.run("document.querySelector('#tensor-table tbody tr').textContent")
    page.run("document.getElementById('tensor-search').focus()")
    page.type("blocks.2 softmax")
    found = rows(page)
    assert 0 < found < 50
    names = page.run("[...document.querySelectorAll('#tensor-table tbody tr')].map(r => r.textContent.toLowerCase())")
    assert all("blocks.2" in name and "softmax" in name for name in names)
    assert f"1 to {found} of {found} that match" in page.run("document.getElementById('tensor-count').textContent")
    select(page, "tensor-outcome", "changed")
    assert rows(page) == 0
    page.run("const s = document.getElementById('tensor-search'); s.value = ''; s.dispatchEvent(new Event('input'))")
    assert rows(page) == 1
    select(page, "tensor-outcome", "")
    select(page, "tensor-sort", "lowest SQNR first")
    values = page.run(
        "[...document.querySelectorAll('#tensor-table td:nth-child(7)')].map(c => parseFloat(c.textContent))"
    )
    assert len(values) == 50
    assert values == sorted(values)


def select(page: Browser, identifier: str, value: str) -> None:
    page.run(
        f"(e => {{ e.value = {value!r}; e.dispatchEvent(new Event('change')); }})"
        f"(document.getElementById('{identifier}'))"
    )


def test_findings_are_filtered(page: Browser) -> None:
    visible = "[...document.querySelectorAll('.finding')].filter(e => e.checkVisibility()).length"
    assert page.run(visible) == 2
    select(page, "finding-severity", "error")
    assert page.run(visible) == 1
    assert page.run("document.getElementById('finding-count').textContent") == "1 finding shown"


def test_the_keyboard_reaches_and_works_everything(page: Browser) -> None:
    focused = "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
    page.press("Tab")
    assert page.run(focused) == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left >= 0"), "it is visible with the focus"
    page.press("Enter", "\r")
    assert page.run("location.hash") == "#content"
    page.press("/", "/")
    assert page.run(focused) == "tensor-search"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    reached = []
    for _ in range(6):
        page.press("Tab")
        reached.append(page.run(focused))
    assert reached[:4] == ["tensor-outcome", "tensor-dtype", "tensor-sort", "tensor-next"]
    page.run("document.getElementById('tensor-next').focus()")
    before = first_name(page)
    page.press("Enter", "\r")
    assert first_name(page) != before
    assert page.run(focused) == "tensor-next"
    for _ in range(10):  # to the last page
        page.press("Enter", "\r")
        if page.run("document.getElementById('tensor-next').disabled"):
            break
    assert page.run(focused) == "tensor-previous", "the button that can no longer be pressed gives the focus away"


def test_every_control_has_a_name_and_what_scrolls_takes_the_focus(page: Browser) -> None:
    unnamed = """[...document.querySelectorAll('button, input, select, summary, a')]
      .filter(e => !(e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""
    assert page.run(unnamed) == []
    page.resize(420)
    scrolling = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert page.run(f"{scrolling}.length") > 0
    assert page.run(f"{scrolling}.every(e => e.tabIndex === 0 && e.getAttribute('aria-label'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_themes(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    assert page.run("document.documentElement.dataset.theme") == scheme
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    measured = page.run(_LOW_CONTRAST.replace("LIMIT", str(_CONTRAST)))
    assert measured["count"] > 300
    assert measured["low"] == []
    page.run("document.querySelectorAll('details').forEach(d => { d.open = false; })")
    page.screenshot(SCREENSHOTS / f"{scheme}.png")


def test_the_theme_is_switched_by_the_button(page: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.run("document.getElementById('theme').click()")
    assert page.run("document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    assert page.run(background) != light
    page.run("document.getElementById('theme').click()")
    assert page.run(background) == light


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_only_tables_and_charts_scroll_sideways(page: Browser, width: int) -> None:
    page.resize(width)
    assert page.run("document.documentElement.scrollWidth") <= width
    page.screenshot(SCREENSHOTS / f"width_{width}.png")


def test_labels_of_a_chart_do_not_overlap_or_leave_it(page: Browser) -> None:
    overlaps = """[...document.querySelectorAll('svg')].flatMap(svg => {
      const frame = svg.getBoundingClientRect();
      const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
      const out = boxes.filter(([, b]) =>
        b.left < frame.left - 1 || b.right > frame.right + 1 || b.bottom > frame.bottom + 1);
      const pairs = boxes.flatMap(([name, a], i) => boxes.slice(i + 1).filter(([, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4
      ).map(([other]) => name + ' | ' + other));
      return [...out.map(([name]) => 'outside: ' + name), ...pairs];
    })"""
    assert page.run("document.querySelectorAll('svg text').length") > 100
    assert page.run(overlaps) == []


def test_hostile_names_do_nothing(result: Result, browser: Browser, tmp_path: Path) -> None:
    bad = hostile(result)
    page = shown(browser, render_page(bad, replace(bad, run="other")), tmp_path)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.settle()
    assert page.run("window.hacked") is None
    assert page.run("document.images.length") == 0
    assert "onerror" in first_name(page)
    assert (page.complaints, len(page.requests)) == ([], 1)
    page.resize(1200)
    assert page.run("document.documentElement.scrollWidth") <= 1200


def test_a_comparison_is_shown(result: Result, browser: Browser, tmp_path: Path) -> None:
    page = shown(browser, render_page(result, replace(result, run="other")), tmp_path)
    assert page.complaints == []
    assert page.run("document.querySelector('#tensor-table thead').textContent.includes('planned in other')")
    assert page.run("document.querySelectorAll('.second').length") == 1
    page.screenshot(SCREENSHOTS / "comparison.png")


def test_five_thousand_tensors_are_quick(result: Result, browser: Browser, tmp_path: Path) -> None:
    """The limits are several times what was measured, so that a loaded machine does not matter."""
    text = render_page(with_tensors(result, 5000))
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    loaded_ms = browser.open(path)
    start = time.monotonic()
    filtered_ms = browser.run("""(() => {
      const search = document.getElementById('tensor-search'), start = performance.now();
      search.value = 'stages.42 output_213'; search.dispatchEvent(new Event('input'));
      document.body.getBoundingClientRect();
      return performance.now() - start;
    })()""")
    print(f"{len(text.encode())} bytes, loaded in {loaded_ms:.0f} ms, filtered in {filtered_ms:.0f} ms")
    assert rows(browser) == 10
    assert loaded_ms < 5000
    assert filtered_ms < 1000
    assert time.monotonic() - start < 10
    assert browser.complaints == []
