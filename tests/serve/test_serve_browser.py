"""The pages in a real browser: headless Chromium by its own driver."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from shop import RIGHT, RULES, Shop, serving

from kernelproof import session

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
PHONE, DESK = (390, 844), (1280, 900)
SECONDS = 30


def programs() -> tuple[str, str]:
    """Browser and driver; without them a test is left out, but not in CI."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        words = "no chromium and chromedriver: install the packages chromium and chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(f"CI has {words}")
        pytest.skip(words)
    return found[0], found[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = programs()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ARGUMENTS:
        options.add_argument(argument)
    made = webdriver.Chrome(options, Service(driver))
    yield made
    made.quit()


@pytest.fixture(scope="module")
def site(shop: Shop) -> Iterator[str]:
    with serving(shop.url) as address:
        yield address


@pytest.fixture(autouse=True)
def _plain(browser: Any) -> None:
    look(browser, DESK, "light")
    complaints(browser)


def look(browser: Any, size: tuple[int, int], scheme: str) -> None:
    shown = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shown)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(browser: Any) -> list[str]:
    """What the console has said since it was asked last."""
    return [entry["message"] for entry in browser.get_log("browser")]


def click(browser: Any, words: str) -> None:
    """Follow the first link of this text, and wait for the page behind it."""
    from selenium.webdriver.support.ui import WebDriverWait

    before = browser.current_url
    browser.find_element("link text", words).click()
    WebDriverWait(browser, SECONDS).until(lambda b: b.current_url != before)


def wait(browser: Any, expression: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, SECONDS).until(lambda b: b.execute_script(f"return {expression}"))


def text(browser: Any) -> str:
    return str(browser.find_element("tag name", "main").text)


def test_from_the_board_to_a_session(browser: Any, site: str, shop: Shop) -> None:
    browser.get(site)
    click(browser, "candidate")
    assert browser.current_url.endswith(f"/records/{shop.record}")
    # The chart of times was drawn: the browser let its script run.
    wait(
        browser, "document.querySelectorAll('.chart .bars path, .chart .barlayer path').length > 1"
    )
    click(browser, "as one file")
    wait(browser, "document.querySelectorAll('.chart .barlayer path').length > 1")
    # Its scripts are of no site: they reach nothing of this one.
    assert browser.execute_script("return window.origin") == "null"
    browser.back()
    click(browser, "axpby")
    assert "def get_inputs" in text(browser)
    click(browser, shop.session)
    wait(browser, "document.getElementById('connection').textContent === 'live'")
    assert browser.execute_script("return document.querySelectorAll('.steps').length") == 0
    browser.find_element("css selector", "#diff-2 summary").click()
    assert "raise ValueError" in text(browser)
    click(browser, "1")
    assert "class ModelNew" in text(browser)
    assert complaints(browser) == []


def test_an_update_of_a_running_session(browser: Any, shop: Shop, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    one = session.start("axpby", RULES, store=url).session.id
    with serving(url, "--allow-submit") as address:
        browser.get(f"{address}/sessions/{one}")
        wait(browser, "document.getElementById('connection').textContent === 'live'")
        assert "nothing has been tried yet" in text(browser)
        # Another process tries something; the page says so by itself.
        session.compile(one, RIGHT, store=url)
        wait(browser, "document.querySelector('#attempt-1 .mark.pass') !== null")
        # And by the form, with another text.
        area = browser.find_element("css selector", "textarea")
        browser.execute_script("arguments[0].value = arguments[1]", area, RIGHT + "# again\n")
        browser.find_element("css selector", "form.send button").click()
        wait(browser, "document.querySelector('#attempt-2 .mark.pass') !== null")
        browser.find_element("css selector", "#diff-2 summary").click()
        assert "+# again" in text(browser)
        # What was opened stays open while the ladder is replaced.
        session.submit(one, RIGHT, store=url)
        wait(browser, "document.getElementById('connection').textContent === 'closed'")
        assert browser.execute_script("return document.querySelector('#diff-2').open")
        assert not browser.find_elements("css selector", "form.send")
        assert complaints(browser) == []


def test_dark_and_light(browser: Any, site: str, shop: Shop) -> None:
    def brightness() -> list[int]:
        script = """const s = getComputedStyle(document.body);
        return [s.backgroundColor, s.color].map(c => Number(c.match(/[0-9]+/)[0]))"""
        return list(browser.execute_script(script))

    browser.get(f"{site}/sessions/{shop.session}")
    back, front = brightness()
    assert back > 200 > 60 > front
    look(browser, DESK, "dark")
    back, front = brightness()
    assert back < 60 < 200 < front


@pytest.mark.parametrize("path", ["/", "/problems", "/problems/axpby", "/records", "/sessions",
                                  "/records/RECORD", "/sessions/SESSION",
                                  "/sessions/SESSION/attempts/1", "/nothing"])  # fmt: skip
def test_a_phone_scrolls_no_page_sideways(browser: Any, site: str, shop: Shop, path: str) -> None:
    look(browser, PHONE, "light")
    browser.get(site + path.replace("RECORD", shop.record).replace("SESSION", shop.session))
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= PHONE[0]
    found = complaints(browser)
    # Of a page that is not there the browser itself says so.
    assert [c for c in found if "status of 404" not in c] == []
    assert bool(found) == (path == "/nothing")


def test_a_report_is_one_file(browser: Any, shop: Shop, tmp_path: Any, run_cli: Any) -> None:
    path = tmp_path / "report.html"
    done = run_cli("report", "-o", str(path), "--store", shop.url)
    assert done.returncode == 0, done.stderr
    for size, scheme in ((DESK, "light"), (PHONE, "dark")):
        look(browser, size, scheme)
        browser.get(path.as_uri())
        wait(browser, "document.querySelectorAll('.chart .barlayer path').length > 1")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
        assert complaints(browser) == []
    order = [text(browser).index(words) for words in (
        "The candidate computes the same function.", "Time per call", "What to do", "Machine",
    )]  # fmt: skip
    assert order == sorted(order)
