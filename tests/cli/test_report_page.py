"""The report in a real browser: it draws and opens, asks nobody for anything, and fits a desk and a phone."""

import shutil
from dataclasses import replace

import pytest

from autofit.report.html import page as html
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

LOG = ("loading pictures", "a line that is far longer than any phone is wide: " + 40 * "0123456789 ")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    """Chromium of the system, else the one that playwright has downloaded."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    with playwright.sync_playwright() as running:
        try:
            opened = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium can be started here: {error}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    asked = make_request(tmp_path_factory.mktemp("tune"), device_bytes=150 * MIB, max_trials=10)
    found = collect(tune, asked, FakeLauncher(cliff=64))[1]
    first = found.trials[0]
    evidence = replace(first.measurement.evidence, log_tail=LOG)
    return replace(
        found, trials=(replace(first, measurement=replace(first.measurement, evidence=evidence)), *found.trials[1:])
    )


@pytest.fixture
def opened(browser, record, tmp_path):
    """Open a page at a width; afterwards nothing may have gone wrong in it, and nothing been asked for."""
    messages, pages = [], []

    def show(width):
        path = tmp_path / "report.html"
        html.save(record, path)
        page = browser.new_page(viewport={"width": width, "height": 800})
        pages.append(page)
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("data:", "blob:")) or asked.append(request.url))
        asked = []
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn=yes]", timeout=200_000)
        assert asked == [path.as_uri()]
        return page

    yield show
    for page in pages:
        page.close()
    assert messages == []


@pytest.mark.parametrize("width", [1280, 400])
def test_a_tune_is_drawn_no_wider_than_the_screen_and_a_box_shows_the_log_of_a_trial(opened, width):
    page = opened(width)
    plots = page.query_selector_all("[data-plot]")
    assert len(plots) == 2
    for plot in plots:
        drawn = plot.query_selector_all(".main-svg .trace, .main-svg .points path")
        assert drawn, plot.get_attribute("data-plot")
        assert plot.bounding_box()["width"] <= width
    box, detail = page.locator("input").first, page.locator("tr.detail").first
    assert not detail.is_visible()
    box.check()
    assert detail.is_visible()
    assert detail.locator(".log").inner_text().startswith("loading pictures")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_button_sends_data_away_and_pictures_stand_for_the_plots_on_paper(opened):
    page = opened(1280)  # a narrow plot has no buttons
    buttons = {button.get_attribute("data-title").lower() for button in page.query_selector_all("[data-plot] .modebar-btn")}
    assert buttons == {"download plot as a png", "zoom", "pan", "zoom in", "zoom out", "reset axes"}
    page.locator("input").first.check()
    page.emulate_media(media="print")
    assert not page.locator("[data-plot]").first.is_visible()
    pictures = page.query_selector_all("img.plot-print")
    assert len(pictures) == 2
    assert all(picture.is_visible() and picture.evaluate("image => image.naturalWidth") > 0 for picture in pictures)
    assert not page.locator("tr.detail").first.is_visible()
