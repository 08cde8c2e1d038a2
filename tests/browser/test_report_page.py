"""Reports opened from disk in a real browser: nothing asked for, nothing wrong, all drawn."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest

from manege.report import comparing, single, writing
from tests.helpers.synthetic_run import evaluation, grid_events, make_run, per_class_events, trial

pytestmark = pytest.mark.full

CLASSES = ["3", "5", "8"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    run = make_run(
        folder / "run", per_class_events(CLASSES, 10), labels=CLASSES, method="per-class"
    )
    evaluation(run, labels=tuple(CLASSES))
    trial(run, tuple(CLASSES))
    grid = make_run(folder / "grid", grid_events(3, 3, 10), labels=CLASSES, method="cellular")
    empty = folder / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text("method: per-class\n")
    for path in (run, grid):
        shutil.copy(path / "samples" / "model.png", path / "samples" / "seed-0.png")
    pages = {
        "classes": single.report(run),
        "grid": single.report(grid),
        "empty": single.report(empty),
        "both": comparing.compare([run, grid]),
    }
    return {
        name: writing.write(page, folder / name / "report.html").report
        for name, page in pages.items()
        if not (folder / name).mkdir(exist_ok=True)
    }


def _open(chromium, file: Path) -> None:
    chromium.get_log("browser"), chromium.get_log("performance")  # What was before.
    chromium.get(file.as_uri())


def _requests(chromium) -> list[str]:
    """What the browser asked anybody for."""
    messages = [
        json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")
    ]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith("data:")]


@pytest.mark.parametrize("name", ["classes", "grid", "empty", "both"])
def test_a_report_opens_from_disk_without_errors_and_without_requests(chromium, reports, name):
    _open(chromium, reports[name])
    assert chromium.title.endswith("manege report")
    assert _requests(chromium) == [reports[name].as_uri()]
    assert [entry for entry in chromium.get_log("browser") if entry["level"] != "DEBUG"] == []


@pytest.mark.parametrize(("name", "fewest"), [("classes", 8), ("grid", 14), ("both", 4)])
def test_every_figure_is_drawn_and_every_picture_decoded(chromium, reports, name, fewest):
    _open(chromium, reports[name])
    figures = chromium.execute_script(
        """return [...document.querySelectorAll('figure svg')].map(svg => {
             const box = svg.getBoundingClientRect();
             const shapes = svg.querySelectorAll('polyline,polygon,rect,circle,text');
             const drawn = [...shapes].filter(s => {
               const b = s.getBBox(); return b.width > 0 || b.height > 0;});
             return [svg.closest('figure').id, box.width, box.height, drawn.length,
                     svg.querySelector('title').textContent, svg.querySelector('desc').textContent];
           })"""
    )
    assert len(figures) >= fewest
    for figure, width, height, shapes, title, words in figures:
        assert width > 200, figure
        assert height > 60, figure
        assert shapes > 5, figure
        assert title, figure
        assert len(words) > 10, figure
    pictures = chromium.execute_script(
        "return [...document.images].map(i => [i.complete, i.naturalWidth, i.alt])"
    )
    assert pictures
    assert all(complete and width > 0 and alt for complete, width, alt in pictures)


def test_words_stay_inside_their_figures(chromium, reports):
    _open(chromium, reports["grid"])
    outside = chromium.execute_script(
        """return [...document.querySelectorAll('figure svg')].flatMap(svg => {
             const b = svg.getBoundingClientRect();
             return [...svg.querySelectorAll('text')].filter(t => {
               const r = t.getBoundingClientRect();
               return r.left < b.left - 3 || r.right > b.right + 12 || r.bottom > b.bottom + 3;
             }).map(t => svg.closest('figure').id + ': ' + t.textContent);
           })"""
    )
    assert outside == []


def test_light_and_dark_differ_and_can_be_read(chromium, reports):
    _open(chromium, reports["classes"])
    found = {}
    for theme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": theme}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        found[theme] = chromium.execute_script(
            """const light = c => { const [r, g, b] = c.match(/\\d+/g).map(Number);
                 return (0.299 * r + 0.587 * g + 0.114 * b) / 255; };
               const text = document.querySelector('figure svg text');
               return [light(getComputedStyle(document.body).backgroundColor),
                       light(getComputedStyle(document.body).color),
                       light(getComputedStyle(text).fill)];"""
        )
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    paper, ink, figure_ink = found["light"]
    assert paper > 0.9 > 0.3 > max(ink, figure_ink)
    paper, ink, figure_ink = found["dark"]
    assert paper < 0.2 < 0.7 < min(ink, figure_ink)


def test_a_narrow_window_does_not_scroll_sideways(chromium, reports):
    metrics = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for name in ("classes", "grid", "both"):
            _open(chromium, reports[name])
            width = chromium.execute_script("return document.documentElement.scrollWidth")
            assert width <= 380, name
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_can_be_read_with_the_keyboard_and_printed(chromium, reports):
    _open(chromium, reports["grid"])
    from selenium.webdriver.common.keys import Keys

    body = chromium.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    assert chromium.switch_to.active_element.get_attribute("class") == "skip"
    reached = set()
    for _ in range(40):
        chromium.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(chromium.switch_to.active_element.tag_name)
    assert {"a", "figure"} <= reached
    printed = chromium.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
