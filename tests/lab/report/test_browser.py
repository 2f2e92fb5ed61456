"""The page in headless Chromium: opened from a file, network off, used with mouse and keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from crsam.lab.report.page import LARGEST, page_of, write_page
from crsam.lab.report.page.server import Server
from crsam.lab.report.runs import read_runs
from lab.report.browser import CHROMIUM, Browser, browser
from lab.report.folders import BEND, add_line, make_comparison, make_landscape, make_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: make browser installs it")

SGD, SAM, CRSAM = (0, 114, 178), (213, 94, 0), (0, 158, 115)
"""The first three colours of the style sheet, in the light."""
CHART = '[data-curve="train.loss"] canvas.top'


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = make_comparison(tmp_path_factory.mktemp("runs"), seeds=3)
    for method in ("sgd", "sam", "crsam"):
        make_landscape(runs / method / "seed0", method)
    return runs


@pytest.fixture
def page(chromium: Browser, folder: Path) -> Browser:
    """The page of three methods with three seeds each, just opened, in the light."""
    write_page([folder], folder / "report.html")
    chromium.errors.clear()
    chromium.requests.clear()
    chromium.size(1280, 900)
    chromium.media()
    chromium.open(folder / "report.html")
    return chromium


def count(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    """How many pixels have a colour."""
    return sum(found for found, c in picture.getcolors(1 << 24) or [] if c == colour)


def test_it_opens_from_a_file_without_network_or_error_and_is_drawn(page: Browser) -> None:
    assert page.errors == []
    assert all(url.startswith("file:") for url in page.requests)
    assert len(page.requests) == 1
    chart = page.picture_of('[data-curve="train.loss"]')
    for colour in (SGD, SAM, CRSAM):
        assert count(chart, colour) > 150
    assert "94.0 ± 1.0" in page.text("#summary-table")  # sgd: 90 + 3 + seed
    assert page.text("h1") == "sgd, sam, crsam"


def test_each_curve_is_where_its_values_are(page: Browser) -> None:
    """The distances between the three lines, in pixels, are as those between the values."""
    chart = page.picture_of(CHART)
    column = chart.width - 40

    def height_of(colour: tuple[int, int, int]) -> float:
        def apart(row: int) -> int:  # a line between two rows of pixels is a little paler in both
            return sum(abs(a - b) for a, b in zip(chart.getpixel((column, row)), colour))

        rows = [row for row in range(chart.height) if apart(row) < 90]
        assert 1 <= len(rows) <= 4
        return sum(rows) / len(rows)

    sgd, sam, crsam = height_of(SGD), height_of(SAM), height_of(CRSAM)
    assert sgd - crsam > 20
    share = (BEND["sam"] - BEND["sgd"]) / (BEND["crsam"] - BEND["sgd"])
    assert (sgd - sam) / (sgd - crsam) == pytest.approx(share, abs=0.05)


def test_a_method_can_be_hidden_everywhere_and_shown_again(page: Browser) -> None:
    before = page.picture_of('[data-curve="train.loss"]')
    assert page.run("document.querySelectorAll('.surface').length") == 3
    page.click('.toggles [data-group="1"]')
    assert page.run("document.querySelector('[data-group=\"1\"]').ariaPressed") == "false"
    hidden = page.picture_of('[data-curve="train.loss"]')
    assert count(hidden, SAM) == 0
    assert count(hidden, CRSAM) > 150
    assert page.run("document.querySelectorAll('.surface').length") == 2
    page.click('.toggles [data-group="1"]')
    again = page.picture_of('[data-curve="train.loss"]')
    assert ImageChops.difference(before, again).getbbox() is None
    assert page.errors == []


def test_hovering_tells_the_values_in_all_charts(page: Browser) -> None:
    readout = '[data-curve="train.loss"] .readout'
    assert page.text(readout).startswith("end")
    x, y, width, height = page.box(CHART)
    page.mouse("mouseMoved", x + width / 2, y + height / 2)
    page.frame()
    said = page.text(readout)
    assert said.startswith("epoch 3")
    assert "sgd" in said
    assert "± 0.02" in said  # the seeds are 0.02 apart
    assert page.text('[data-curve="train.accuracy"] .readout').startswith("epoch 3")
    page.mouse("mouseMoved", x + width / 2, y - 40)
    page.frame()
    assert page.text(readout).startswith("end")


def test_single_runs_are_reachable(page: Browser) -> None:
    few = page.picture_of('[data-curve="train.loss"]')
    page.click("#singles")
    assert ImageChops.difference(few, page.picture_of('[data-curve="train.loss"]')).getbbox()
    x, y, width, height = page.box(CHART)
    found = set()
    for step in range(0, int(height), 3):
        page.mouse("mouseMoved", x + width * 0.75, y + step)
        page.frame()
        found |= {n for n in ("crsam/seed0", "crsam/seed2") if n in page.text(".readout")}
    assert found == {"crsam/seed0", "crsam/seed2"}
    assert page.run("document.querySelector('#summary-table .single').hidden")
    page.click("#summary-table button.open")
    assert not page.run("document.querySelector('#summary-table .single').hidden")
    assert "sgd/seed0" in page.text("#summary-table .single")


def test_dragging_zooms_and_a_double_click_shows_all_again(page: Browser) -> None:
    x, y, width, _ = page.box(CHART)
    before = page.picture()
    page.drag((x + width * 0.5, y + 50), (x + width * 0.7, y + 50))
    page.mouse("mouseMoved", x + 60, y + 60)
    page.frame()
    left = float(page.text(".readout").split("epoch ")[1].split("sgd")[0])
    assert 2.8 < left < 3.6
    for clicks in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            page.mouse(kind, x + 60, y + 60, button="left", clickCount=clicks)
    page.mouse("mouseMoved", x + 60, y - 60)
    page.frame()
    assert ImageChops.difference(before, page.picture()).getbbox() is None


def test_keys_move_the_cursor_zoom_and_turn(page: Browser) -> None:
    page.run(f"document.querySelector('{CHART}').focus()")
    page.press("ArrowRight")
    assert page.text(".readout").startswith("epoch 6")
    page.press("ArrowLeft")
    assert page.text(".readout").startswith("epoch 5.5")
    assert "epoch 5.5" in page.run(f"document.querySelector('{CHART}').getAttribute('aria-label')")
    zoomed = "document.querySelector('.zoom button:last-child').disabled"
    assert page.run(zoomed)
    page.press("+")
    assert not page.run(zoomed)
    page.press("0")
    assert page.run(zoomed)
    before = page.picture_of(".surface canvas")
    page.run("document.querySelector('.surface canvas').focus({preventScroll: true})")
    page.press("ArrowLeft")
    assert ImageChops.difference(before, page.picture_of(".surface canvas")).getbbox()


def test_landscapes_share_a_scale_and_turn_together(page: Browser) -> None:
    surfaces = [f".surface:nth-child({k}) canvas" for k in (1, 2, 3)]

    def lightest(picture: Image.Image) -> int:
        """Pixels near the upper end of the ramp, yellow."""
        return sum(
            n for n, (r, g, b) in picture.getcolors(1 << 24) if min(r, g) > 150 and r - b > 40
        )

    steep, mild, _ = before = [page.picture_of(each) for each in surfaces]
    assert lightest(steep) > 300
    assert lightest(mild) < 30  # sam's bowl is a third as high: dark throughout
    x, y, width, height = page.box(surfaces[0])
    page.drag((x + width / 2, y + height / 2), (x + width / 2 + 60, y + height / 2 + 20))
    for old, selector in zip(before, surfaces):
        assert ImageChops.difference(old, page.picture_of(selector)).getbbox()
    page.run("document.querySelector('#landscapes .controls > button').click()")
    page.frame()
    assert ImageChops.difference(steep, page.picture_of(surfaces[0])).getbbox() is None


def test_text_from_runs_is_only_text(chromium: Browser, tmp_path: Path) -> None:
    evil = "<script>window.broken=1<∕script><img src=x onerror=window.broken=1>"
    run = make_run(tmp_path / evil, "sam")
    recipe = (run / "recipe.toml").read_text()
    closing = "</script><script>window.broken=1</script>"
    (run / "recipe.toml").write_text(recipe.replace('"digits_mlp"', json.dumps(closing)))
    make_run(tmp_path / "other", "sgd")
    add_line(run, json.dumps({"kind": "train", "epoch": 9, "<b>bold</b>": 1}) + "\n")
    (tmp_path / "r.html").write_bytes(page_of(read_runs([tmp_path]), title=evil))
    chromium.errors.clear()
    chromium.open(tmp_path / "r.html")
    assert chromium.run("window.broken") is None
    assert chromium.run("document.images.length") == 0
    assert chromium.errors == []
    assert chromium.text("h1") == evil
    chromium.click("#summary-table tbody:nth-of-type(2) button.open")
    assert evil in chromium.text("#summary-table")
    assert closing in chromium.text("#differences")
    assert "<b>bold</b>" in chromium.text("#curves")


def test_unwell_runs_are_shown_as_such(chromium: Browser, tmp_path: Path) -> None:
    torn, diverged, empty, garbage = (tmp_path / f"sam/seed{k}" for k in range(4))
    make_run(torn, "sam", 0)
    add_line(torn, '{"kind": "tr')
    (torn / "result.json").unlink()
    make_run(diverged, "sam", 1)
    for epoch in (7, 8, 9):
        add_line(diverged, f'{{"kind": "train", "epoch": {epoch}, "loss": NaN, "lr": Infinity}}\n')
    file = diverged / "result.json"
    file.write_text(file.read_text().replace('"diverged_at": null', '"diverged_at": 350'))
    empty.mkdir()
    make_run(garbage, "sam", 3)
    for name in ("recipe.toml", "metrics.jsonl", "result.json", "environment.json"):
        (garbage / name).write_bytes(b"\xff{")
    make_run(tmp_path / "other/seed0", "sgd", 0, "train.batch_size=32")
    write_page([tmp_path], tmp_path / "r.html")
    chromium.errors.clear()
    chromium.open(tmp_path / "r.html")
    assert chromium.errors == []
    problems = chromium.text("#problems")
    for words in ("cut off", "not finite", "an empty folder", "recipe.toml is not whole"):
        assert words in problems
    summary = chromium.text("#summary-table")
    for words in ("1 of 2 ended", "1 diverged", "at step 350", "cannot be read", "epoch 6 of 6"):
        assert words in summary
    assert "batch_size" in chromium.text("#differences")
    assert "sam not finite" in chromium.text('[data-curve="train.loss"] .readout')


def test_twenty_runs_of_two_hundred_epochs_load_in_under_three_seconds(
    chromium: Browser, tmp_path: Path
) -> None:
    for k in range(20):
        method = ("sgd", "sam", "crsam", "asam")[k % 4]
        make_run(tmp_path / f"{method}/seed{k // 4}", method, k // 4, epochs=200, lines=8)
    write_page([tmp_path], tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < LARGEST
    chromium.errors.clear()
    assert chromium.open(tmp_path / "r.html") < 3
    assert chromium.errors == []
    assert count(chromium.picture_of('[data-curve="train.loss"]'), SGD) > 150


def test_light_dark_phone_and_print(page: Browser) -> None:
    paper = {}
    for scheme in ("light", "dark"):
        page.media(scheme=scheme)
        paper[scheme] = page.picture().getpixel((3, 3))
        chart = page.picture_of('[data-curve="train.loss"]')
        colours = chart.getcolors(1 << 24)
        assert len(colours) > 50
    assert sum(paper["light"]) > 700
    assert sum(paper["dark"]) < 150
    page.click("#theme")
    assert sum(page.picture().getpixel((3, 3))) > 700  # what is asked for wins over the system
    page.size(390, 844, phone=True)
    page.open(page.run("location.href"))
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.size(1280, 900)
    page.media("print")
    assert page.run("getComputedStyle(document.querySelector('.toggles')).display") == "none"
    assert page.errors == []


def test_the_live_page_follows_a_run_and_keeps_what_was_chosen(
    chromium: Browser, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs/sam/seed0", "sam")
    make_run(tmp_path / "runs/sgd/seed0", "sgd")
    (run / "result.json").unlink()
    with Server(tmp_path / "runs", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            chromium.errors.clear()
            chromium.requests.clear()
            chromium.size(1280, 900)
            chromium.media()
            chromium.open(server.address)
            assert "epoch 6 of 6" in chromium.text("#summary-table")
            chromium.click('.toggles [data-group="0"]')
            add_line(run, '{"kind": "train", "epoch": 7, "loss": 0.125}\n')
            make_run(tmp_path / "runs/crsam/seed0", "crsam")
            waited = (
                "new Promise((r, no) => { const end = Date.now() + 15000; (function look() {"
                "if (document.querySelector('#summary-table').textContent.includes('crsam')) r();"
                "else if (Date.now() > end) no('nothing new'); else setTimeout(look, 50); })(); })"
            )
            chromium.run(waited)
            chromium.frame()
            assert "0.1250" in chromium.text('[data-curve="train.loss"] .readout')
            assert count(chromium.picture_of('[data-curve="train.loss"]'), SGD) == 0
            assert chromium.errors == []
            assert all(url.startswith(server.address) for url in chromium.requests)
        finally:
            server.shutdown()
            thread.join()
        chromium.open("about:blank")
