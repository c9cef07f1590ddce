"""The HTML report in a real browser: what a reader can do with it on screen, phone and paper."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from varied import varied

from pytest_portability.report import document
from pytest_portability.report import json as as_json

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from pytest_portability.report import html

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium or no chromedriver on the path (Debian: chromium, chromium-driver)",
)

Driver = webdriver.Chrome

FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)

VERDICTS = {
    "ok": 2,
    "regressed": 2,
    "parity": 1,
    "improved": 1,
    "placement": 1,
    "memory": 1,
    "inconclusive": 1,
    "recorded": 1,
    "error": 1,
    "skipped": 1,
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of the report's file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html.render(document.of(as_json.tables(varied()), "")), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One browser for all of these tests."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    if getattr(os, "geteuid", lambda: 1)() == 0:
        options.add_argument("--no-sandbox")  # which root cannot have
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser: Driver, page: str) -> Driver:
    """The report as it is when it was just opened."""
    for command in ("Emulation.clearDeviceMetricsOverride", "Emulation.setEmulatedMedia"):
        browser.execute_cdp_cmd(command, {})
    for kind in ("browser", "performance"):
        log(browser, kind)  # of the browser's own pages, and of the test before
    return _open(browser, page)


def _open(browser: Driver, address: str) -> Driver:
    browser.get("about:blank")  # so that an address that differs in its fragment is loaded anew
    browser.get(address)
    return browser


def _settle(browser: Driver) -> None:
    """Let the page lay itself out: what was folded follows in the frames after a change."""
    frames = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0])))"
    browser.execute_async_script(frames)


def log(browser: Driver, kind: str) -> list[dict[str, Any]]:
    """What was logged since it was last asked for."""
    found: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call] # Selenium's
    return found


def rows(browser: Driver, column: int = 1) -> list[str]:
    """Texts of a column of the table, of the rows that are shown."""
    script = """
        return [...document.querySelectorAll("#table tbody tr")]
            .filter((row) => !row.hidden)
            .map((row) => row.cells[arguments[0]].textContent.trim().split(/\\s+/).pop());
    """
    found: list[str] = browser.execute_script(script, column)
    return found


def verdicts(browser: Driver) -> list[str]:
    """Of the rows that are shown."""
    return rows(browser, 0)


def control(browser: Driver, name: str) -> Any:
    """A control of the filter."""
    return browser.find_element(By.NAME, name)


def count(browser: Driver) -> str:
    """What is said of how many items are shown."""
    text: str = browser.find_element(By.ID, "count").text
    return text


def shown_articles(browser: Driver) -> int:
    """Items below the table that are shown."""
    found: Sequence[Any] = browser.find_elements(By.CSS_SELECTOR, "article.item:not([hidden])")
    return len(found)


def test_it_opens_without_an_error_and_asks_the_network_for_nothing(opened: Driver) -> None:
    assert log(opened, "browser") == []
    messages = (json.loads(entry["message"])["message"] for entry in log(opened, "performance"))
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert {url.partition(":")[0] for url in asked} <= {"file", "about", "data"}
    assert count(opened) == "12 of 12 items shown"


def test_the_policy_refuses_what_a_page_might_load(opened: Driver) -> None:
    script = """
        const done = arguments[0];
        document.addEventListener("securitypolicyviolation", (e) => done(e.effectiveDirective));
        fetch("http://127.0.0.1:9/").catch(() => {});
    """
    assert opened.execute_async_script(script) == "connect-src"
    log(opened, "browser")


def test_a_verdict_filters_the_table_and_the_items(opened: Driver) -> None:
    """And the address says so; sent to somebody, it shows the same."""
    Select(control(opened, "verdict")).select_by_value("regressed")
    assert verdicts(opened) == ["regressed"] * 2
    assert count(opened) == "2 of 12 items shown"
    assert shown_articles(opened) == 2
    assert opened.current_url.endswith("#verdict=regressed")
    _open(opened, opened.current_url)
    assert verdicts(opened) == ["regressed"] * 2
    opened.find_element(By.CSS_SELECTOR, "#filter button").click()
    assert count(opened) == "12 of 12 items shown"


def test_words_filter_by_all_that_is_said_of_an_item(opened: Driver) -> None:
    """Here of a cause, which is not in the table, and of a target."""
    control(opened, "q").send_keys("attention ×6")
    assert rows(opened) == ["minilm"]
    assert "#q=attention" in opened.current_url
    control(opened, "q").clear()
    control(opened, "q").send_keys("nothing like it")
    assert count(opened) == "0 of 12 items shown"
    opened.find_element(By.CSS_SELECTOR, "#filter button").click()
    Select(control(opened, "target")).select_by_value("amd-mi300x")
    assert set(rows(opened, 4)) == {"amd-mi300x"}


def test_a_column_sorts_by_a_click_and_by_the_keyboard(opened: Driver) -> None:
    """By number; what is not known comes last either way."""
    button = opened.find_elements(By.CSS_SELECTOR, "#table thead button")[6]
    head = button.find_element(By.XPATH, "..")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    changes = rows(opened, 6)
    assert changes[-4:] == ["–"] * 4
    script = (
        "return [...document.querySelectorAll('#table tbody tr')].map(r => r.cells[6].dataset.sort)"
    )
    keys = [float(key) for key in opened.execute_script(script) if key]
    assert keys == sorted(keys)
    assert len(keys) == 8
    button.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    keys = [float(key) for key in opened.execute_script(script) if key]
    assert keys == sorted(keys, reverse=True)
    assert rows(opened, 6)[-4:] == ["–"] * 4
    other = opened.find_elements(By.CSS_SELECTOR, "#table thead button")[1]
    other.send_keys(Keys.SPACE)
    assert rows(opened) == sorted(rows(opened))
    assert head.get_attribute("aria-sort") is None


def test_a_link_to_an_item_opens_it(opened: Driver, page: str) -> None:
    """Also where a filter would hide it."""
    name = str(opened.find_element(By.CSS_SELECTOR, "article.pass").get_attribute("id"))
    folded = f"#{name.replace('.', chr(92) + '.')} > details"
    assert not opened.find_element(By.CSS_SELECTOR, folded).get_attribute("open")
    _open(opened, f"{page}#{name}")
    assert opened.find_element(By.CSS_SELECTOR, folded).get_attribute("open")
    top = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    assert -1 <= opened.execute_script(top, name) < 900
    Select(control(opened, "verdict")).select_by_value("parity")
    opened.execute_script("location.hash = arguments[0]", name)
    assert opened.find_element(By.ID, name).is_displayed()
    assert count(opened) == "12 of 12 items shown"


def test_every_verdict_can_be_chosen(opened: Driver) -> None:
    options = Select(control(opened, "verdict")).options[1:]
    assert {o.get_attribute("value"): o.text for o in options} == {
        word: f"{word} ({number})" for word, number in VERDICTS.items()
    }


def test_a_phone_scrolls_down_and_not_sideways(opened: Driver) -> None:
    """Every item open; what is wide scrolls in its box."""
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    opened.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    width = opened.execute_script("return document.documentElement.scrollWidth")
    assert width <= 360
    boxes = """
        return [...document.querySelectorAll(".scroll")]
            .map((box) => [box.scrollWidth > box.clientWidth, box.tabIndex]);
    """
    _settle(opened)
    found = [tuple(box) for box in opened.execute_script(boxes)]
    assert (True, 0) in found, "what scrolls is reached by the keyboard"
    assert not {(True, -1), (False, 0)} & set(found)


def _colour(browser: Driver, selector: str, name: str) -> tuple[float, ...]:
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    text: str = browser.execute_script(script, selector, name)
    return tuple(float(part) for part in text.partition("(")[2].strip(")").split(",")[:3])


def _contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two colours, by WCAG 2.2."""

    def luminance(colour: Sequence[float]) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (part / 255 for part in colour)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


TEXTS = ("body", "a[href]", ".build", ".badge.pass", ".badge.warn", ".badge.fail", ".badge.known")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(opened: Driver, scheme: str) -> None:
    """By the contrast that WCAG AA asks of text, plots included."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    ground = _colour(opened, "body", "backgroundColor")
    assert (sum(ground) < 384) == (scheme == "dark")
    for selector in TEXTS:
        assert _contrast(_colour(opened, selector, "color"), ground) >= 4.5, selector
    assert _contrast(_colour(opened, ".plot text", "fill"), ground) >= 4.5


def test_on_paper_everything_is_open_and_no_control_is_left(opened: Driver) -> None:
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    script = """
        const parts = [...document.querySelectorAll(".commands, .facts table")];
        return [parts.length, parts.filter((part) => part.checkVisibility()).length];
    """
    _settle(opened)
    parts, visible = opened.execute_script(script)
    assert visible == parts > 12
    assert not opened.find_element(By.ID, "filter").is_displayed()


def test_a_screen_reader_is_told_what_things_are(opened: Driver) -> None:
    """Tables have captions and heads, controls labels, pictures names, regions names."""
    script = """
        const all = (s) => [...document.querySelectorAll(s)];
        return {
            captions: all("table").filter((t) => !t.caption?.textContent.trim()).length,
            heads: all("th").filter((h) => !h.scope).length,
            labels: all("input, select").filter((c) => !c.labels.length).length,
            pictures: all("svg").filter((s) => s.getAttribute("role") !== "img" ||
                !["title", "desc"].every((n) => s.querySelector(n)?.textContent)).length,
            regions: all("[role=region]").filter((r) => !r.getAttribute("aria-label")).length,
            status: all("[role=status]").length,
            language: document.documentElement.lang,
        };
    """
    assert opened.execute_script(script) == {
        "captions": 0,
        "heads": 0,
        "labels": 0,
        "pictures": 0,
        "regions": 0,
        "status": 1,
        "language": "en",
    }


def test_the_keyboard_reaches_the_items_first(opened: Driver) -> None:
    """By the skip link; what has the focus shows it."""
    opened.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    link = opened.switch_to.active_element
    assert link.text == "Skip to the items"
    assert link.value_of_css_property("outline-style") == "solid"
    link.send_keys(Keys.ENTER)
    assert opened.switch_to.active_element.get_attribute("id") == "items"


def test_without_its_script_it_is_whole(browser: Driver, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        _open(browser, page)
        assert len(browser.find_elements(By.CSS_SELECTOR, "#table tbody tr")) == 12
        assert not browser.find_element(By.ID, "filter").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
