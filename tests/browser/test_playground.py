"""The playground in a browser: what a visitor does, and what the page asks of whom."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("gradio")
pytest.importorskip("playwright")

pytestmark = pytest.mark.browser

SCREENSHOT = Path(__file__).parents[2] / "docs" / "images" / "playground.png"
PATIENCE = 120_000
"""Milliseconds; a busy machine takes its time."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The command itself, on a free port."""
    command = [sys.executable, "-m", "bfn", "app", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "the playground is at http://127.0.0.1:" in line
        yield line.split()[4]
        process.terminate()


class Visit:
    """A page with all that went wrong on it, and all that it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: set[str] = set()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))

    def choose(self, widget: str, option: str) -> None:
        self.page.click(f"#{widget} input")
        self.page.locator("[role=option]").filter(has_text=option).first.click()

    def draw(self) -> None:
        """Press the button and wait for both films."""
        self.page.evaluate("document.querySelectorAll('.bfn-film').forEach((film) => film.remove())")
        self.page.click("#draw")
        for side in "AB":
            self.page.wait_for_selector(f"#panel-{side} .bfn-film", state="attached")

    def pictures(self, side: str) -> list[str]:
        """Return what the panel shows."""
        shown = self.page.locator(f"#panel-{side} .bfn-frame.on img")
        return [shown.nth(i).get_attribute("src") for i in range(shown.count())]

    def seek(self, value: int) -> None:
        """Move the slider as a hand does: set it, and let it tell."""
        self.page.evaluate(
            "(value) => { const slider = document.querySelector('#bfn-slider'); bfnFilm.fit(); slider.value = value;"
            " slider.dispatchEvent(new Event('input', { bubbles: true })); }",
            value,
        )

    def captions(self) -> list[str]:
        return self.page.locator(".bfn-frame.on .bfn-when b").all_inner_texts()


@pytest.fixture(scope="module")
def visit(chromium: Any, address: str) -> Iterator[Visit]:
    page = chromium.new_page(viewport={"width": 1280, "height": 1000}, reduced_motion="reduce")
    visit = Visit(page)
    page.goto(address)
    for side in "AB":  # it opens with samples, before anything is pressed
        page.wait_for_selector(f"#panel-{side} .bfn-film", state="attached")
    yield visit
    page.close()


def test_samples_form_and_another_solver_changes_the_picture(visit: Visit) -> None:
    visit.draw()
    left, right = visit.pictures("A"), visit.pictures("B")
    assert len(left) == len(right) == 2, "what is predicted, and what is known"
    assert left != right
    assert all(source.startswith("data:image/png;base64,") for source in (*left, *right))
    assert "10 network calls in" in visit.page.inner_text("#panel-A .bfn-spent")

    visit.choose("solver-A", "bfn-solver++2")
    visit.draw()
    assert visit.pictures("A") != left, "another solver"
    assert visit.pictures("B") == right, "the same settings, the same noise"
    if os.environ.get("BFN_SCREENSHOT"):
        visit.choose("solver-A", "bfn: the original")
        visit.draw()
        visit.page.screenshot(path=SCREENSHOT, full_page=True)


def test_the_slider_steps_through_the_calls(visit: Visit) -> None:
    visit.seek(0)
    assert visit.captions() == ["call 1 of 10"] * 2
    first = visit.pictures("B")
    visit.seek(4)
    assert visit.captions() == ["call 5 of 10"] * 2
    assert visit.pictures("B") != first
    visit.seek(9)
    assert visit.captions() == ["call 10 of 10"] * 2
    visit.page.locator("#bfn-slider").focus()
    visit.page.keyboard.press("ArrowLeft")
    assert visit.captions() == ["call 9 of 10"] * 2
    visit.page.click("#bfn-control button")
    visit.page.wait_for_function("document.querySelector('#bfn-slider').value === '9'")
    assert visit.captions() == ["call 10 of 10"] * 2


def test_the_dial_is_there_for_solvers_that_have_one(visit: Visit) -> None:
    visit.choose("solver-B", "fast-sde")
    visit.page.wait_for_selector("#dial-B", state="visible")
    visit.choose("solver-B", "fast-ode")
    visit.page.wait_for_selector("#dial-B", state="hidden")


def test_letters_fade_in(visit: Visit) -> None:
    visit.choose("model", "text8")
    visit.page.wait_for_selector("#prompt", state="visible")
    visit.page.fill("#prompt textarea, #prompt input", "the ____ of the")
    visit.draw()
    last = visit.page.locator("#panel-B .bfn-frame.on .bfn-letters").first
    lines = last.locator("p").all_text_contents()
    assert len(lines) == 4
    for line in lines:
        assert len(line) == 128
        assert line[:4] + line[8:15] == "the  of the", "the known letters are kept"
    opacity = "(element) => getComputedStyle(element).opacity"
    assert float(last.locator("i").first.evaluate(opacity)) == 1
    visit.seek(0)
    faint = visit.page.locator("#panel-B .bfn-frame.on .bfn-letters").nth(1).locator("i.s0").first
    assert float(faint.evaluate(opacity)) < 0.2


def test_wrong_input_is_a_message_on_the_page(visit: Visit) -> None:
    visit.page.fill("#prompt textarea, #prompt input", "<b>K</b>")
    visit.page.click("#draw")
    toast = visit.page.locator(".toast-body, [data-testid=toast-body]").first
    toast.wait_for()
    assert "is not among the symbols" in toast.inner_text()
    assert toast.locator("b", has_text="K").count() == 0, "shown as it was written, not as what it would do"
    visit.page.fill("#prompt textarea, #prompt input", "")


def test_solvers_in_the_plane(visit: Visit) -> None:
    visit.page.get_by_role("tab", name="In the plane").click()
    visit.page.click("#plane-draw")
    for place in ("ways", "errors"):
        picture = visit.page.wait_for_selector(f"#{place} img")
        assert picture.evaluate("(image) => image.complete && image.naturalWidth") > 500


@pytest.mark.parametrize("width", [360, 390])
def test_it_fits_a_phone(chromium: Any, address: str, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 780}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.wait_for_selector("#panel-B .bfn-film", state="attached")
    wider = """() => [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right >
        innerWidth + 1 && getComputedStyle(e).position !== 'fixed').map((e) => e.id || e.className).slice(0, 9)"""
    spilt = (
        """() => [...document.querySelectorAll('.bfn-panel')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"""
    )
    assert page.evaluate(spilt) == 0
    picture = page.locator("#panel-A .bfn-frame.on img").first.bounding_box()
    assert picture["width"] > width / 4
    for tab in ("Samples", "In the plane"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (tab, page.evaluate(wider))
        assert page.evaluate("document.body.scrollWidth") <= width, (tab, page.evaluate(wider))
    page.close()


def test_nothing_was_complained_of_and_nobody_else_was_asked(visit: Visit, address: str) -> None:
    assert visit.complaints == []
    hosts = {urlsplit(url).netloc for url in visit.asked if not url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(address).netloc}
