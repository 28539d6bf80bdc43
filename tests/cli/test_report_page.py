"""The page in a real browser: it draws and opens, loads nothing else, fits a desk and a phone."""

import shutil
from dataclasses import replace

import pytest

from autofit.report.html import page as html
from autofit.tuning.engine import tune
from tests.fakes import MIB, FakeLauncher, collect, make_request

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed"
)

LOG = (
    "loading pictures",
    "a line that is far longer than any phone is wide: " + 40 * "0123456789 ",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    """Chromium of the system, else the one that playwright has downloaded."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    with playwright.sync_playwright() as running:
        try:
            opened = running.chromium.launch(
                executable_path=found, args=["--no-sandbox"]
            )
        except playwright.Error as error:
            pytest.skip(f"no Chromium can be started here: {error}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The page of a tune with a trial whose log has a line that is wider than any phone."""
    folder = tmp_path_factory.mktemp("tune")
    record = collect(
        tune,
        make_request(folder, device_bytes=150 * MIB, max_trials=10),
        FakeLauncher(cliff=64),
    )[1]
    first = record.trials[0]
    measurement = replace(
        first.measurement, evidence=replace(first.measurement.evidence, log_tail=LOG)
    )
    html.save(
        replace(
            record, trials=(replace(first, measurement=measurement), *record.trials[1:])
        ),
        folder / "page.html",
    )
    return folder / "page.html"


@pytest.mark.parametrize("width", [1280, 400])
def test_a_tune_is_drawn_no_wider_than_the_screen_and_a_box_shows_the_log_of_a_trial(
    browser, saved, width
):
    problems = []
    requests = []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda request: (
            request.url.startswith(("data:", "blob:")) or requests.append(request.url)
        ),
    )
    page.goto(saved.as_uri())
    page.wait_for_selector("html[data-drawn=yes]", timeout=200_000)
    plots = page.query_selector_all("[data-plot]")
    assert len(plots) == 2
    for plot in plots:
        assert plot.query_selector_all(".main-svg .trace, .main-svg .points path"), (
            plot.get_attribute("data-plot")
        )
        assert plot.bounding_box()["width"] <= width
    detail = page.locator("tr.detail").first
    assert not detail.is_visible()
    page.locator("input").first.check()
    assert detail.locator(".log").inner_text().startswith("loading pictures")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(media="print")  # pictures stand for the plots on paper
    assert not plots[0].is_visible()
    assert all(
        picture.is_visible() for picture in page.query_selector_all("img.plot-print")
    )
    page.close()
    assert (requests, problems) == ([saved.as_uri()], [])
